"""Owns one run: its lock, torchrun, its status, escalation and last words.

    python -m trainers.supervise RUN_DIR [--resume STEP]

Lives in a session of its own and outlives the page. When it dies, the kernel kills torchrun and with
it every rank, so that nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from trainers import autopsy, notify
from trainers.autopsy import Cause
from trainers.contract import events, lifeline
from trainers.contract.config import Config
from trainers.contract.events import EventFile, State
from trainers.contract.json_files import parse_json
from trainers.contract.processes import ProcessTree
from trainers.contract.rundir import RunDirectory, Status, torchrun_command
from trainers.contract.torchrun import torchrun_options, torchrun_program

REPOSITORY = Path(__file__).resolve().parent.parent
POLL_S = 0.05
STOP_GRACE_S = 9.0
MAX_GRACE_S = 120.0
LAST_WORDS_S = 30.0
PROGRESS_KINDS = frozenset({"step", "eval", "checkpoint", "sample"})
TERM_GRACE_S = 3.0
RETRY_S = 0.5


def main() -> None:
    """Supervise the run to its end; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Run one training job and look after it.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", type=int, metavar="STEP")
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    lock = run.acquire_lock()
    try:
        sys.exit(Supervisor(run, options.resume).run_to_end())
    finally:
        os.close(lock)


class Supervisor:
    """One start of one run, from launching torchrun to the final status."""

    def __init__(self, run: RunDirectory, resume_step: int | None) -> None:
        self._run = run
        self._resume_step = resume_step
        self._torchrun_log = run.logs / "torchrun.log"
        self._torchrun_dir = run.logs / "torchrun"
        if run.events.exists():
            # Cuts off a half line that a crash left, before anybody's place in the file is noted.
            EventFile(run.events).close()
        self._events_offset = run.events.stat().st_size if run.events.exists() else 0
        self._commands_offset = run.commands.stat().st_size if run.commands.exists() else 0
        self._stop_wished_at: float | None = None
        self._reason = ""
        self._state_changed_at = time.monotonic()
        self._progressed_at: float | None = None
        self._longest_silence_s = 0.0
        self._saved_bytes = 0
        self._saving_seen_at = 0.0
        self._status_is_saved = False
        self._terminated_at: float | None = None
        self._forced = False
        self._was_told_to_end = False
        me = psutil.Process()
        self._status = Status(
            state="starting", pid=me.pid, pid_start_time=me.create_time(), started_unix_s=time.time()
        )

    def run_to_end(self) -> int:
        """Start torchrun, follow it to its end, write the last words; return its exit code."""
        self._save_status()
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        try:
            config = self._run.read_config()
            torchrun = self._start_torchrun(config)
        except (OSError, ValueError) as error:
            hint = "See logs/torchrun.log and config.json."
            cause = Cause(code="start_failed", message=f"The job could not be started: {error}", hint=hint)
            self._finish("failed", 1, cause)
            return 1
        tree = ProcessTree(torchrun.pid)
        while torchrun.poll() is None:
            tree.look()
            # A wish first, then what the run says to it.
            self._follow_commands()
            self._follow_events()
            self._escalate(torchrun, tree)
            if not self._status_is_saved:
                self._save_status()
            time.sleep(POLL_S)
        tree.kill()
        self._follow_events()
        self._conclude(torchrun.returncode, [process.pid for process in tree.survivors()])
        return torchrun.returncode

    def _start_torchrun(self, config: Config) -> subprocess.Popen[bytes]:
        command = torchrun_command(config, self._run.path, self._resume_step)
        command[:1] = torchrun_program()
        self._run.logs.mkdir(exist_ok=True)
        shutil.rmtree(self._torchrun_dir, ignore_errors=True)
        # A command given while the ranks still start is theirs too: they read on from where we do.
        environment = {
            **os.environ,
            **torchrun_options(self._torchrun_dir),
            "TRAINERS_SUPERVISED": "1",
            "TRAINERS_COMMANDS_OFFSET": str(self._commands_offset),
        }
        environment.pop(notify.VARIABLE, None)  # it holds tokens, which are none of the ranks' business
        with self._torchrun_log.open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lifeline.die_with_parent,
            )

    def _follow_events(self) -> None:
        """Bring `status.json` to the state the run says it is in."""
        batch, self._events_offset = events.read(self._run.events, self._events_offset)
        now = time.monotonic()
        if any(event["kind"] in PROGRESS_KINDS for event in batch):
            if self._progressed_at is not None and self._status.state == "running":
                self._longest_silence_s = max(self._longest_silence_s, now - self._progressed_at)
            self._progressed_at = now
        said = [event for event in batch if event["kind"] == "state"]
        states = [event["state"] for event in said]
        if "stopping" in [self._status.state, *states][:-1] and states:
            # Over: either it has ended, or a stop that could not save was refused and it goes on.
            self._stop_wished_at = None
        if states and states[-1] != self._status.state:
            self._status = replace(self._status, state=states[-1])
            self._reason = said[-1]["reason"]
            self._state_changed_at = now
            if self._status.state in events.LIVE_STATES:
                self._save_status()

    def _save_status(self) -> None:
        """Write the status; when the disk does not take it, the next look tries again."""
        try:
            self._run.write_status(self._status)
            self._status_is_saved = True
        except OSError as error:
            self._status_is_saved = False
            print(f"status.json could not be written, trying again: {error}", flush=True)

    def _follow_commands(self) -> None:
        """Note a wish to stop: it sets the time after which force is used."""
        try:
            with self._run.commands.open("rb") as file:
                file.seek(self._commands_offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        end = chunk.rfind(b"\n") + 1
        self._commands_offset += end
        for line in chunk[:end].splitlines():
            if _is_stop(line) and self._stop_wished_at is None:
                self._stop_wished_at = time.monotonic()

    def _escalate(self, torchrun: subprocess.Popen[bytes], tree: ProcessTree) -> None:
        """Turn a wish to stop that is not obeyed, or an end that hangs, into SIGTERM, then into SIGKILL."""
        has_ended = self._status.state not in events.LIVE_STATES
        if self._stop_wished_at is None and not has_ended:
            return
        now = time.monotonic()
        if self._terminated_at is None:
            # Who has been silent for long before (slow steps, an evaluation) may be so again; and saving
            # takes as long as it takes, which is as long as there is more and more of it.
            saved_bytes = self._run.bytes_being_saved()
            if saved_bytes != self._saved_bytes:
                self._saved_bytes, self._saving_seen_at = saved_bytes, now
            patient_since = max(self._stop_wished_at or 0.0, self._state_changed_at, self._saving_seen_at)
            usual_s = min(MAX_GRACE_S, max(STOP_GRACE_S, 2 * self._longest_silence_s))
            grace_s = MAX_GRACE_S if self._status.state == "stopping" else usual_s
            if self._was_told_to_end or now - patient_since > grace_s:
                tree.look(now=True)
                torchrun.terminate()
                self._terminated_at = now
                self._forced = True
        elif now - self._terminated_at > TERM_GRACE_S:
            tree.kill()

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        """Asked to end by the system: skip the polite part."""
        self._was_told_to_end = True
        self._stop_wished_at = time.monotonic()

    def _conclude(self, exit_code: int, left_over: Sequence[int] = ()) -> None:
        if left_over:
            message = f"Processes of this run could not be ended: {', '.join(map(str, left_over))}."
            hint = "They hang in the kernel (a driver or a network disk); the machine may need a restart."
            self._say("warning", Cause(code="processes_left", message=message, hint=hint))
        said = self._status.state
        if said in ("finished", "stopped"):
            # Rank 0 says so after the last save; a process that crashes on its way out takes nothing back.
            self._finish(said, exit_code, None)
        elif self._forced:
            self._finish("stopped", exit_code, self._forced_stop())
        else:
            cause = autopsy.explain(self._run, self._torchrun_log, self._torchrun_dir, exit_code)
            self._finish("failed", exit_code, cause)

    def _forced_stop(self) -> Cause:
        why = (
            "The system asked the run to end (SIGTERM)"
            if self._was_told_to_end
            else "The run did not stop by itself in time and was ended by force"
        )
        return Cause(
            code="stop_forced",
            message=f"{why}.",
            hint="Steps after the newest checkpoint were not saved.",
        )

    def _what_is_kept(self) -> str:
        newest = max(self._run.list_checkpoints(), key=lambda item: item.saved_unix_s, default=None)
        if newest is None:
            return "Nothing was saved yet: start it again."
        return f"Resume goes on from the checkpoint of step {newest.step}."

    def _finish(self, state: State, exit_code: int, cause: Cause | None) -> None:
        """Write the last events, where rank 0 has not, then the final status."""
        if cause is not None:
            cause = replace(cause, hint=f"{cause.hint} {self._what_is_kept()}")
        already_said = self._status.state == state
        reason = cause.message if cause else self._reason if already_said else "The run ended."
        if cause is not None or not already_said:
            kind = "warning" if state == "stopped" else "error"
            self._say(kind, cause, {"state": state, "reason": reason})
        self._status = replace(
            self._status,
            state=state,
            exit_code=exit_code,
            error=None if cause is None or state == "stopped" else f"{cause.message} {cause.hint}",
            ended_unix_s=time.time(),
        )
        deadline = time.monotonic() + LAST_WORDS_S
        self._save_status()
        while not self._status_is_saved and time.monotonic() < deadline:
            time.sleep(RETRY_S)
            self._save_status()
        problem = notify.run_ended(self._run, state, reason)
        if problem is not None:
            self._say("warning", problem)

    def _say(self, kind: str, cause: Cause | None, state: dict[str, str] | None = None) -> None:
        """Append last words for a rank 0 that did not live to say them; a full disk is waited for."""
        now = time.time()
        words = [] if cause is None else [(now, kind, cause.fields())]
        words += [] if state is None else [(now, "state", state)]
        deadline = time.monotonic() + LAST_WORDS_S
        while True:
            try:
                file = EventFile(self._run.events)
                file.append(words)
                file.close()
                return
            except OSError as error:
                print(f"the last words could not be written, trying again: {error}", flush=True)
                if time.monotonic() > deadline:
                    return
                time.sleep(RETRY_S)


def _is_stop(line: bytes) -> bool:
    try:
        return bool(parse_json(line)["name"] == "stop")
    except (ValueError, LookupError, TypeError):
        return False


if __name__ == "__main__":
    main()
