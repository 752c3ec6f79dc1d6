"""Owns one run: its lock, torchrun, its status, escalation and last words.

    python -m trainers.engines.local.supervisor RUN_DIR [--resume STEP] [--ticket TOKEN]

Lives in a session of its own and outlives the page. When it dies, the kernel kills torchrun and with
it every rank, so that nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from trainers.contract import events, tickets
from trainers.contract.config import Config
from trainers.contract.events import EventFile, State
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import process_handle
from trainers.engines.heartbeats.heartbeat_board import Board
from trainers.engines.local import final_events, notify, torchrun_process
from trainers.engines.local.diagnosis import autopsy
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.engines.local.diagnosis.hang_watch import HangWatch
from trainers.engines.local.diagnosis.hangs import WORKING_BYTES_PER_S
from trainers.engines.local.final_events import Words
from trainers.engines.local.log_cap import LogCap
from trainers.engines.local.rundir_watch import RundirWatch
from trainers.engines.local.stopping.escalation import Escalation, Saving
from trainers.engines.local.stopping.stop_requests import StopRequests
from trainers.engines.local.torchrun_process import TorchrunProcess, WarmTorchrun
from trainers.files import private_files
from trainers.files.plain_files import open_to_append
from trainers.machine import effort, lifeline
from trainers.machine.clock import now_unix_s
from trainers.machine.processes import ProcessTree

POLL_S = 0.05
_FOLLOWED = ("state", "command", "plan", "checkpoint")
SAVING_LOOK_S = 0.5
LIFE_LOOK_S = 1.5


def main() -> None:
    """Supervise the run to its end; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Run and supervise one training job.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", type=int, metavar="STEP")
    parser.add_argument("--ticket", metavar="TOKEN", help="the queue ticket it was started with")
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    sys.exit(supervise(run, options.resume, options.ticket))


def supervise(
    run: RunDirectory, resume_step: int | None, ticket: str | None, waiting: WarmTorchrun | None = None
) -> int:
    """Own a run from its lock to its last words; return torchrun's exit code.

    Args:
        ticket: the place in the line it is started for; None: started by hand.
        waiting: ranks that stand by for it.

    Raises:
        ValueError: when another process owns it, or the ticket is not its own any more.
    """
    lock = run.acquire_lock()
    try:
        run.remove_half_written_status()
        tickets.claim(run, ticket)
        return Supervisor(run, resume_step, waiting).run_to_end()
    finally:
        os.close(lock)
        if waiting is not None:
            waiting.put_away(run)


def redirect_output(run: RunDirectory) -> None:
    """Send what this process says to the run's log: it was started before there was one."""
    run.logs.mkdir(exist_ok=True)
    fd = open_to_append(run.logs / "supervisor.log")
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


class Supervisor:
    """One start of one run, from launching torchrun to the final status."""

    def __init__(
        self, run: RunDirectory, resume_step: int | None, waiting: WarmTorchrun | None = None
    ) -> None:
        self._run = run
        self._resume_step = resume_step
        self._waiting = waiting
        self._stood_by = False
        self._torchrun_log = run.logs / "torchrun.log"
        self._torchrun_dir = run.logs / "torchrun"
        self._board: Board | None = None
        if run.events.exists():
            # Cuts off a half line that a crash left, before anybody's place in the file is noted.
            EventFile(run.events).close()
        self._events_offset = run.events.stat().st_size if run.events.exists() else 0
        self._first_offset = self._events_offset
        self._wishes = StopRequests(run.commands)
        self._commands_offset = self._wishes.offset
        self._unanswered: list[str] = []
        self._reason = ""
        self._num_steps: int | None = None
        self._is_all_saved = False
        self._escalation = Escalation(time.monotonic())
        self._saving_looked_at = self._life_looked_at = 0.0
        self._io_bytes = 0
        self._watch: HangWatch | None = None
        self._waits_for_ever = False
        self._has_said_it_waits = False
        self._hang: Cause | None = None
        self._status_is_saved = False
        me = psutil.Process()
        self._status = Status(
            state="starting",
            handle=process_handle(me.pid, me.create_time()),
            started_unix_s=now_unix_s(),
        )

    def run_to_end(self) -> int:
        """Start torchrun, follow it to its end, write the last words; return its exit code."""
        self._save_status()
        tickets.leave_line(self._run)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        lifeline.adopt_orphans()
        home = RundirWatch(self._run)
        try:
            private_files.require_ours(self._run.config)
            config = self._run.read_config()
            torchrun = self._assemble(config).process
        except (OSError, ValueError) as error:
            hint = "See logs/torchrun.log and config.json."
            cause = Cause(code="start_failed", message=f"The job could not be started: {error}", hint=hint)
            self._finish("failed", 1, cause)
            return 1
        tree = ProcessTree(os.getpid(), with_root=False)
        if not self._follow(torchrun, tree, home):
            return self._abandon(tree)
        if self._fell_before_it_began():
            print("warm workers ended before the run began: it starts without them", flush=True)
            torchrun = self._assemble(config).process
            if not self._follow(torchrun, tree, home):
                return self._abandon(tree)
        self._conclude(torchrun.returncode, [process.pid for process in tree.survivors()])
        return torchrun.returncode

    def _follow(self, torchrun: subprocess.Popen[bytes], tree: ProcessTree, home: RundirWatch) -> bool:
        """Look after torchrun until it has ended, with all below it; False: the run's directory is gone."""
        log_cap = LogCap(self._run.logs)
        while torchrun.poll() is None:
            tree.look()
            if home.is_gone():
                return False
            log_cap.look()
            # A wish first, then what the run says to it.
            self._follow_commands()
            self._follow_events()
            self._escalate(torchrun, tree)
            self._look_for_hang(tree)
            if not self._status_is_saved:
                self._save_status()
            time.sleep(POLL_S)
        tree.kill()
        self._follow_events()
        return True

    def _fell_before_it_began(self) -> bool:
        """Tell whether ranks that stood by ended before they said a word: one of them was gone already."""
        is_silent = self._events_offset == self._first_offset
        return self._stood_by and is_silent and not self._escalation.is_wished and self._hang is None

    def _abandon(self, tree: ProcessTree) -> int:
        """End a run whose directory is gone: there is nothing to save to, and nowhere to say so but here."""
        print(f"{self._run.path} is gone, so the run is ended", flush=True)
        tree.kill()
        return 1

    def _assemble(self, config: Config) -> TorchrunProcess:
        """Start torchrun, or give the run to one that stands by."""
        waiting, self._waiting = self._waiting, None
        self._stood_by = (
            waiting is not None and waiting.num_ranks == config.world_size and waiting.is_complete
        )
        if waiting is not None and self._stood_by:
            assembled = waiting.begin(self._run, self._resume_step, self._commands_offset)
        else:
            if waiting is not None:
                ProcessTree(os.getpid(), with_root=False).kill()  # what is left of it
            assembled = torchrun_process.start(self._run, config, self._resume_step, self._commands_offset)
        self._torchrun_log, self._torchrun_dir = assembled.log, assembled.details
        if assembled.board is not None:
            self._board = assembled.board
            self._watch = HangWatch(self._run, config, self._board)
            self._waits_for_ever = config.on_hang == "wait"
        return assembled

    def _follow_events(self) -> None:
        """Bring `status.json` to the state the run says it is in."""
        batch, self._events_offset = events.read(self._run.events, self._events_offset, _FOLLOWED)
        for event in batch:
            if event["kind"] == "plan":
                self._num_steps = event["num_steps"]
            # The last of all saves: what was to be done is done, and said before.
            self._is_all_saved |= event["kind"] == "checkpoint" and event.get("reason") == "end"
        answered = {event["id"] for event in batch if event["kind"] == "command"}
        self._unanswered = [wish for wish in self._unanswered if wish not in answered]
        said = [event for event in batch if event["kind"] == "state"]
        states = [event["state"] for event in said]
        was_stopping = "stopping" in [self._status.state, *states][:-1]
        if was_stopping and states and states[-1] in ("running", "paused"):
            self._escalation.take_back()  # it could not save, so the stop was refused and it goes on
        if states and states[-1] != self._status.state:
            self._status = replace(self._status, state=states[-1])
            self._reason = said[-1]["reason"]
            self._escalation.state_changed(time.monotonic())
            if self._status.state in events.LIVE_STATES:
                self._save_status()

    def _save_status(self) -> None:
        """Write the status; when the disk does not take it, the next look tries again."""
        self._status = replace(self._status, last_seen_unix_s=now_unix_s())
        try:
            self._run.write_status(self._status)
            self._status_is_saved = True
        except OSError as error:
            self._status_is_saved = False
            print(f"status.json could not be written, trying again: {error}", flush=True)

    def _follow_commands(self) -> None:
        """Note a wish to stop: it sets the time after which force is used."""
        for wish in self._wishes.read():
            self._unanswered.append(wish.id)
            self._escalation.wish(time.monotonic() - wish.late_s, save=wish.save)

    def _escalate(self, torchrun: subprocess.Popen[bytes], tree: ProcessTree) -> None:
        """Use force when it is time."""
        now = time.monotonic()
        if self._escalation.is_wished and now - self._saving_looked_at >= SAVING_LOOK_S:
            self._saving_looked_at = now
            self._escalation.note_saving(self._look_at_saving(), now)
        self._note_life(now)
        action = self._escalation.decide(self._status.state, now)
        if action == "terminate":
            tree.look(now=True)
            torchrun.terminate()
        elif action == "kill":
            tree.kill()

    def _note_life(self, now: float) -> None:
        """See whether the run is at work, where that decides about force; say once that it is waited for."""
        is_due = now - self._life_looked_at >= LIFE_LOOK_S
        if self._watch is None or not is_due or not self._escalation.depends_on_life(self._status.state, now):
            return
        self._life_looked_at = now
        if not self._watch.is_at_work():
            return
        self._escalation.note_life(now)
        if self._escalation.is_overdue(now) and not self._has_said_it_waits:
            self._has_said_it_waits = True
            self._say_while_it_lives(final_events.stop_waits())

    def _look_at_saving(self) -> Saving:
        num_bytes = self._run.bytes_being_saved()
        if num_bytes == 0 or self._board is None:
            return Saving(num_bytes=num_bytes)
        beats = [self._board.read(rank) for rank in range(self._board.num_ranks)]
        efforts = [found for beat in beats if beat is not None and (found := effort.look(beat.pid))]
        before, self._io_bytes = self._io_bytes, sum(found.io_bytes for found in efforts)
        is_moving = self._io_bytes - before >= WORKING_BYTES_PER_S * SAVING_LOOK_S
        return Saving(
            num_bytes=num_bytes, is_at_disk=is_moving or any(found.waits_for_disk for found in efforts)
        )

    def _look_for_hang(self, tree: ProcessTree) -> None:
        """End a run that hangs, or say so and go on waiting, as its configuration says."""
        watch = self._watch
        if watch is None or self._status.state not in events.LIVE_STATES:
            return
        if self._escalation.is_wished:
            watch.follow()
            return
        found = watch.look()
        if found is not None and not self._waits_for_ever:
            self._hang = found
            tree.kill()
        elif found is not None:
            hint = f"{found.hint} The run is set to wait on a hang: Stop ends it."
            self._say_while_it_lives(replace(found, hint=hint))
        elif watch.has_passed:
            watch.forget()
            message = "The run continues: every rank sends heartbeats again."
            self._say_while_it_lives(Cause(code="hang_over", message=message, hint="No action is needed."))

    def _say_while_it_lives(self, cause: Cause) -> None:
        """Say something between rank 0's own events; where the disk does not take it, in the log alone."""
        try:
            final_events.append(self._run, [("warning", cause.fields())])
        except OSError as error:
            print(f"this could not be written to the events: {cause.message} ({error})", flush=True)

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        """Asked to end by the system: skip the polite part."""
        self._escalation.was_told_to_end = True
        self._escalation.wish(time.monotonic(), save=False)

    def _conclude(self, exit_code: int, left_over: Sequence[int] = ()) -> None:
        if left_over:
            final_events.say(self._run, [("warning", final_events.left_over(left_over).fields())])
        said = self._status.state
        if said in ("finished", "stopped"):
            # Rank 0 says so after the last save; a process that crashes on its way out takes nothing back.
            self._finish(said, exit_code, None)
        elif self._is_all_saved:
            cause = autopsy.explain(self._run, self._torchrun_log, self._torchrun_dir, exit_code)
            self._finish("finished", exit_code, final_events.fell_after_its_end(cause))
        elif self._hang is not None:
            self._finish("failed", exit_code, self._hang)
        elif self._escalation.is_forced and said == "starting" and not self._escalation.was_told_to_end:
            self._reason = "Stopped while it was starting: nothing had been trained yet."
            self._finish("stopped", exit_code, None)
        elif self._escalation.is_forced:
            forced = final_events.forced_stop(by_system=self._escalation.was_told_to_end)
            self._finish("stopped", exit_code, forced)
        else:
            cause = autopsy.explain(self._run, self._torchrun_log, self._torchrun_dir, exit_code)
            self._finish("failed", exit_code, cause)

    def _finish(self, state: State, exit_code: int, cause: Cause | None) -> None:
        """Write the last events, where rank 0 has not, then the final status."""
        is_good = state in ("stopped", "finished")
        if cause is not None and state != "finished":
            kept = final_events.what_is_kept(self._run, self._num_steps)
            cause = replace(cause, hint=f"{cause.hint} {kept}")
        already_said = self._status.state == state
        reason = cause.message if cause else self._reason or "The run ended."
        words: list[Words] = [
            ("command", final_events.answer(wish, state, reason)) for wish in self._unanswered
        ]
        if cause is not None:
            words.append(("warning" if is_good else "error", cause.fields()))
        if cause is not None or not already_said:
            words.append(("state", {"state": state, "reason": reason}))
        if words:
            final_events.say(self._run, words)
        self._status = replace(
            self._status,
            state=state,
            exit_code=exit_code,
            error=None if cause is None or is_good else f"{cause.message} {cause.hint}",
            ended_unix_s=now_unix_s(),
            last_seen_unix_s=now_unix_s(),
        )
        final_events.insist("status.json", lambda: self._run.write_status(self._status))
        problem = notify.run_ended(self._run, state, reason)
        if problem is not None:
            final_events.say(self._run, [("warning", problem.fields())])


if __name__ == "__main__":
    main()
