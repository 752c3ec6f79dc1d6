"""Supervises one run on this machine, from the start of torchrun to the final status.

The supervisor outlives the page and owns the run while it holds the run's lock. Every `POLL_S` it runs one
pass of `Supervisor._follow`:

1. note the processes of the run and check that the run's directory still exists;
2. cut oversized logs and check whether the kernel has killed a process for lack of memory;
3. read stop requests, then the run's new events, so that a request is always known before its answer;
4. use force where a stop request has timed out or the run hangs (`RunGuard`);
5. write the status again if the last write failed.

All processes of the run are descendants: torchrun dies with the supervisor (`lifeline`), and orphans are
adopted. After torchrun's exit, everything that remains below this process is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from trainers.contract import events, tickets
from trainers.contract.config import Config
from trainers.contract.events import EventFile, State
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import LOCAL, Handle, process_handle
from trainers.engines.base import SUPERVISOR_LOG
from trainers.engines.local import diagnosis, notify, torchrun_process
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stacks import Ranks
from trainers.engines.local.stopping import RunGuard
from trainers.engines.local.torchrun_process import Template
from trainers.engines.local.warm_pool import StartRequest
from trainers.files import private_files
from trainers.files.json_files import remove_half_written
from trainers.files.plain_files import is_readable, redirect_output
from trainers.machine import host, lifeline, os_errors, threads
from trainers.machine.environment import now_unix_s
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree
from trainers.watch import spool

CHECK_EVERY_S = 0.5
MAX_BYTES = 64 * 1024 * 1024
TAIL_BYTES = 8 * 1024 * 1024


def cut_long_logs(folder: Path) -> None:
    """Cut logs that are too long, so that a rank that prints endlessly cannot fill the disk."""
    try:
        with os.scandir(folder) as entries:
            long_logs = [Path(e.path) for e in entries if _is_log(e) and e.stat().st_size > MAX_BYTES]
        for path in long_logs:
            cut_log(path)
    except OSError as error:
        print(f"the logs cannot be inspected: {explain(error)}", flush=True)


def cut_log(path: Path) -> None:
    """Cut a log to its end while another process appends to it, and note in it how much was removed.

    The writer appends, so it continues at the new end; what it writes between reading and truncating is lost.
    The kept part is written over the beginning before truncating: this needs no disk space, and nothing can
    be appended in between.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        tail = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        tail = tail[tail.find(b"\n") + 1 :]
        notice = f"[{(size - len(tail)) / 1e6:,.0f} MB of this log were removed here to save disk space]\n"
        os.ftruncate(fd, os.pwrite(fd, notice.encode() + tail, 0))
    finally:
        os.close(fd)


def _is_log(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".log") and entry.is_file(follow_symlinks=False)


class RundirWatch:
    """Detects that a run's directory was deleted or replaced since the start.

    The directory counts as gone if its config.json is missing: processes that still write may keep other
    files alive.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._identity = self._read_identity()
        self._was_gone = False

    def is_gone(self) -> bool:
        """True if two checks in a row found a different directory or none."""
        was_gone, self._was_gone = self._was_gone, self._read_identity() != self._identity
        return was_gone and self._was_gone

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            stat = self._run.path.stat()
            self._run.config.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return self._identity  # a network file system that does not respond may recover
        return stat.st_dev, stat.st_ino


POLL_S = 0.05
# How often a supervisor without a run checks its template and measures the free cores.
WAIT_POLL_S = 0.5
# Wait for other machines: their torchrun polls several times a second, and a shared folder may be slow.
EVIDENCE_LIMIT_S, EVIDENCE_POLL_S = 4.0, 0.2
# Starts torchrun: run, configuration, step to resume from, offset in `commands.jsonl` for the ranks.
Starter = Callable[[RunDirectory, Config, int | None, int], tuple[subprocess.Popen[bytes], Ranks | None]]
_FOLLOWED_KINDS = ("state", "command", "plan", "checkpoint")


def main() -> None:
    """Supervise a run to its end; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Run and supervise one training job.")
    parser.add_argument("run_dir", type=Path, nargs="?")
    parser.add_argument("--resume", type=int, metavar="STEP")
    parser.add_argument("--ticket", metavar="TOKEN", help="token of the queue ticket")
    parser.add_argument(
        "--wait",
        type=Path,
        metavar="RUNS_DIR",
        help="import torch, then wait for a run of this runs directory",
    )
    options = parser.parse_args()
    if options.wait is not None:
        sys.exit(wait_and_supervise(options.wait))
    if options.run_dir is None:
        parser.error("give RUN_DIR, or --wait")
    os_errors.keep_going_without_log()
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    sys.exit(supervise(run, options.resume, options.ticket))


def wait_and_supervise(runs_dir: Path) -> int:
    """Keep a template ready until a run arrives on standard input, then supervise it; return the exit code.

    If standard input closes first, the page has exited or no longer needs the template: both processes end.
    """
    private_files.begin(runs_dir)
    # Adopt orphans before the template starts, so that no rank can escape `ProcessTree` when its parent dies.
    lifeline.adopt_orphans()
    template = Template()
    free_cores = threads.FreeCores()
    while not is_readable(sys.stdin, WAIT_POLL_S):
        free_cores.note()
        if template.process.poll() is not None:
            return 1
    request = StartRequest.from_line(sys.stdin.buffer.readline())
    if request is None:
        return 0  # the kernel ends the template with this process
    run = RunDirectory(Path(request.run_dir))
    os.environ.update(request.environment)
    redirect_output(run.logs / SUPERVISOR_LOG)
    return supervise(run, request.resume_step, request.ticket, template)


def supervise(
    run: RunDirectory, resume_step: int | None, ticket: str | None, template: Template | None = None
) -> int:
    """Take the run's lock, supervise the run, and write its final events; return torchrun's exit code.

    Args:
        ticket: Token of the queue ticket; None: started from a terminal.
        template: Becomes the run's torchrun.

    Raises:
        ValueError: If another process owns the run, or the ticket is not valid any more.
    """
    with run.owned():
        remove_half_written(run.status)
        tickets.claim_ticket(run, ticket)
        start = functools.partial(torchrun_process.start, template=template)
        return Supervisor(run, resume_step, start=start).run_to_end()


class Supervisor:
    """One start of one run, from launching torchrun to the final status.

    Args:
        start: Starts torchrun.
        job: Engine of the run and its handle; None: this process on this machine.
        restart_reason: Returns the reason if the run is restarted after this end, else None.
        on_sigterm: Called immediately when the system requests the end (SIGTERM).

    Attributes:
        cause: Why the run failed or was ended by force, or None.
    """

    def __init__(
        self,
        run: RunDirectory,
        resume_step: int | None,
        *,
        start: Starter = torchrun_process.start,
        job: tuple[str, Handle] | None = None,
        restart_reason: Callable[[State, Cause | None], str | None] = lambda _state, _cause: None,
        on_sigterm: Callable[[], object] = lambda: None,
    ) -> None:
        self._run = run
        self._start = start
        self._restart_reason, self._on_sigterm = restart_reason, on_sigterm
        self._resume_step = resume_step
        self._is_script = False
        if run.events.exists():
            # Remove an incomplete line that a crash left, before any offset into the file is computed.
            EventFile(run.events).close()
        self._events_offset = run.events.stat().st_size if run.events.exists() else 0
        self._guard = RunGuard(run)
        self._kill_watch = host.KillWatch()
        self._reason = ""
        self._num_steps: int | None = None
        self.cause: Cause | None = None
        self._has_final_checkpoint = False
        self._status_is_saved = False
        engine, handle = job or (LOCAL, _own_handle())
        self._status = Status(state="starting", engine=engine, handle=handle, started_unix_s=now_unix_s())

    @property
    def is_end_requested(self) -> bool:
        """True if the system requested the end (SIGTERM)."""
        return self._guard.escalation.is_end_requested

    @property
    def is_stop_pending(self) -> bool:
        """True if a stop was requested that the run has not completed."""
        return bool(self._guard.unanswered) or self._status.state == "stopping"

    def run_to_end(self) -> int:
        """Run torchrun to its end and write the final events; return its exit code."""
        with contextlib.ExitStack() as resources:
            return self._run_to_end(resources)

    def _run_to_end(self, resources: contextlib.ExitStack) -> int:
        # The first status is the handshake: the engine that started this process waits for its pid.
        self._save_status()
        tickets.close_ticket(self._run)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._handle_sigterm())
        lifeline.adopt_orphans()
        watch = RundirWatch(self._run)
        try:
            private_files.require_ours(self._run.config)
            config = self._run.read_config()
            self._is_script = config.is_script
            if config.is_script:
                self._guard.set_script(config)
            resources.enter_context(torchrun_process.folder_for_ranks(config.num_workers))
            torchrun = self._start_torchrun(config)
        except (OSError, ValueError) as error:
            hint = "See logs/torchrun.log and config.json."
            cause = Cause(
                code="start_failed",
                message=f"The job could not be started: {explain(error)}",
                hint=hint,
            )
            self._finish("failed", 1, cause)
            return 1
        tree = ProcessTree(os.getpid(), with_root=False)
        if not self._follow(torchrun, tree, watch):
            return 1
        self._conclude(torchrun.returncode, [process.pid for process in tree.survivors()])
        return torchrun.returncode

    def _handle_sigterm(self) -> None:
        if not self._guard.escalation.is_end_requested:
            self._on_sigterm()
        self._guard.request_end()

    def _follow(self, torchrun: subprocess.Popen[bytes], tree: ProcessTree, watch: RundirWatch) -> bool:
        """Follow torchrun and its descendants to their end; return False if the run's directory is gone."""
        checked_at = time.monotonic()
        while torchrun.poll() is None:
            tree.update()
            if time.monotonic() - checked_at >= CHECK_EVERY_S:
                checked_at = time.monotonic()
                if watch.is_gone():
                    # Nothing can be saved, and this log is the only place left for a message.
                    print(f"{self._run.path} is gone, so the run is ended", flush=True)
                    tree.kill()
                    return False
                cut_long_logs(self._run.logs)
            self._kill_watch.sample()
            # Stop requests first, then the run's answers to them.
            self._guard.read_requests()
            self._follow_events()
            self._guard.enforce(self._status.state, torchrun, tree)
            if not self._status_is_saved:
                self._save_status()
            time.sleep(POLL_S)
        tree.kill()
        self._follow_events()
        return True

    def _start_torchrun(self, config: Config) -> subprocess.Popen[bytes]:
        offset = self._guard.commands_offset
        process, ranks = self._start(self._run, config, self._resume_step, offset)
        if ranks is not None:
            self._guard.watch_ranks(config, ranks)
        return process

    def _follow_events(self) -> None:
        """Update `status.json` to the latest state in the run's events."""
        batch, self._events_offset = events.read(self._run.events, self._events_offset, _FOLLOWED_KINDS)
        for event in batch:
            if event["kind"] == "plan":
                self._num_steps = event["num_steps"]
            # The "end" checkpoint is the last save: all steps are done and their events are written.
            self._has_final_checkpoint |= event["kind"] == "checkpoint" and event.get("reason") == "end"
        self._guard.note_events(batch, self._status.state)
        states = [event for event in batch if event["kind"] == "state"]
        if states and states[-1]["state"] != self._status.state:
            self._status = replace(self._status, state=states[-1]["state"])
            self._reason = states[-1]["reason"]
            if self._status.state in events.LIVE_STATES:
                self._save_status()

    def _save_status(self) -> None:
        """Write the status. If the write fails, the next pass tries again."""
        self._status = replace(self._status, last_seen_unix_s=now_unix_s())
        try:
            self._run.write_status(self._status)
            self._status_is_saved = True
        except OSError as error:
            self._status_is_saved = False
            print(f"status.json could not be written, trying again: {explain(error)}", flush=True)

    def _conclude(self, exit_code: int, remaining_pids: Sequence[int] = ()) -> None:
        """Determine the final state, from the run's own last state and the force that was used."""
        if remaining_pids:
            message = f"Processes of this run could not be ended: {', '.join(map(str, remaining_pids))}."
            hint = "They hang in the kernel (a driver or a network disk); the machine may need a restart."
            warning = Cause(code="processes_left", message=message, hint=hint)
            diagnosis.append_final_events(self._run, [("warning", warning.fields())])
        recorded = self._status.state
        by_system = self._guard.escalation.is_end_requested
        if self._is_script:
            self._conclude_script(exit_code)
        elif recorded in ("finished", "stopped"):
            # Rank 0 reports these states after the last save; a later crash during exit does not change them.
            self._finish(recorded, exit_code, None)
        elif self._has_final_checkpoint:
            late_failure = self._explain(exit_code)
            message = (
                f"All steps were done and saved. Then, while its processes ended: {late_failure.message}"
            )
            late_failure = replace(
                late_failure, code="late_failure_warning", message=message, hint="Nothing is lost."
            )
            self._finish("finished", exit_code, late_failure)
        elif self._guard.fatal is not None:
            self._finish("failed", exit_code, self._guard.fatal)
        elif self._guard.escalation.is_forced and recorded == "starting" and not by_system:
            self._reason = "Stopped during the start: no step had been trained yet."
            self._finish("stopped", exit_code, None)
        elif self._guard.escalation.is_forced:
            self._finish("stopped", exit_code, diagnosis.forced_stop(by_system=by_system))
        else:
            cause = self._explain(exit_code)
            # When the system ends the entire job, ranks on other machines may exit before this process gets
            # the signal.
            if self._guard.escalation.is_end_requested and cause.code in diagnosis.SYSTEM_END_CODES:
                self._finish("stopped", exit_code, diagnosis.forced_stop(by_system=True))
            else:
                self._finish("failed", exit_code, cause)

    def _conclude_script(self, exit_code: int) -> None:
        """Determine the final state of a script, which records none itself.

        A process that aborts in torch's destructors after its script has ended does not count as failed.
        """
        ends = spool.read_ends(self._run.path, diagnosis.num_ranks_and_machines(self._run)[0])
        has_ended = bool(ends) and all(end == spool.DONE for end in ends)
        is_done = exit_code == 0 or has_ended
        if (
            self._guard.escalation.is_forced and not has_ended
        ):  # else SIGTERM arrived while torchrun was ending
            by_system = self._guard.escalation.is_end_requested
            self._reason = (
                "The system ended the script (SIGTERM)." if by_system else self._guard.describe_force()
            )
            self._finish("stopped", exit_code, None)
        elif self._guard.fatal is not None:
            self._finish("failed", exit_code, self._guard.fatal)
        elif is_done and self._guard.escalation.is_stop_requested:
            self._reason = "The script stopped on request."
            self._finish("stopped", exit_code, None)
        elif is_done:
            self._reason = "The script ended."
            self._finish("finished", exit_code, None)
        else:
            self._finish("failed", exit_code, self._explain(exit_code))

    def _explain(self, exit_code: int) -> Cause:
        """Return the cause of a failure; wait some seconds for evidence from other machines."""
        deadline = time.monotonic() + EVIDENCE_LIMIT_S
        while True:
            cause = diagnosis.explain_end(self._run, exit_code, self._guard.kill_reason)
            if self._kill_watch.has_just_killed:
                return diagnosis.add_lack_of_memory(cause)
            if cause.code not in diagnosis.CONSEQUENCE_CODES or not self._guard.has_other_machines:
                return cause
            if (network_failure := self._guard.network_failure()) is not None:
                return replace(
                    network_failure,
                    message=f"{network_failure.message} {cause.message}",
                    traceback=cause.traceback,
                )
            if time.monotonic() > deadline:
                return cause
            time.sleep(EVIDENCE_POLL_S)

    def _finish(self, state: State, exit_code: int, cause: Cause | None) -> None:
        """Write the final events, unless rank 0 has, then the final status."""
        self.cause = cause
        restart_reason = None if state == "finished" else self._restart_reason(state, cause)
        if restart_reason is not None:
            # The run will be restarted: write only the state "queued", without a final event. An end that the
            # engine requested is not an error of the run.
            state, reason = "queued", f"{restart_reason} {diagnosis.CONTINUES_HINT}"
            cause = None if self._guard.escalation.is_end_requested else cause
        else:
            if cause is not None and state != "finished":
                checkpoint_text = diagnosis.describe_latest_checkpoint(self._run, self._num_steps)
                cause = replace(cause, hint=f"{cause.hint} {checkpoint_text}")
            reason = cause.message if cause else self._reason or "The run ended."
        is_recorded = self._status.state == state
        final_events = diagnosis.make_final_events(
            state, reason, cause, self._guard.unanswered, is_recorded=is_recorded
        )
        if final_events:
            diagnosis.append_final_events(self._run, final_events)
        self._status = replace(
            self._status,
            state=state,
            exit_code=None if restart_reason is not None else exit_code,
            error=f"{cause.message} {cause.hint}" if cause is not None and state == "failed" else None,
            ended_unix_s=None if restart_reason is not None else now_unix_s(),
            last_seen_unix_s=now_unix_s(),
        )
        diagnosis.retry_write("status.json", lambda: self._run.write_status(self._status))
        if (problem := notify.notify_run_ended(self._run, state, reason)) is not None:
            diagnosis.append_final_events(self._run, [("warning", problem.fields())])


def _own_handle() -> Handle:
    process = psutil.Process()
    return process_handle(process.pid, process.create_time())


if __name__ == "__main__":
    main()
