"""One short real job, which is a run with its usual supervisor. The job is always ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from trainers.check_machine.checks.cancelling import CancellableWait, TooLateError
from trainers.contract import events
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness
from trainers.files.plain_files import REPOSITORY, open_plain
from trainers.machine import environment, lifeline, processes, threads
from trainers.machine.processes import ProcessTree

LOG_END_BYTES = 4_000

Result = TypeVar("Result")


class JobError(Exception):
    """A job failed; `detail` is the job's own error."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class CheckJob:
    """A run in the scratch folder of a check.

    Args:
        limit_s: Maximum duration; then the job is killed.
    """

    def __init__(
        self,
        run: RunDirectory,
        variables: Mapping[str, str],
        waiter: CancellableWait,
        *,
        limit_s: float,
        resume_step: int | None = None,
    ) -> None:
        self.run = run
        self._waiter = waiter
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._events: list[Event] = []
        self._offset = run.events.stat().st_size if run.events.exists() else 0
        command = lifeline.bound(sys.executable, "-m", "trainers.engines.local.supervisor", str(run.path))
        if resume_step is not None:
            command += ["--resume", str(resume_step)]
        with (run.logs / "supervisor.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                # Use one thread: losses of several starts are compared bit by bit, and a run would choose the
                # number of threads by the machine's load at the start.
                env=environment.for_a_child({threads.GIVEN: "1", **variables}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._tree = ProcessTree(self._process.pid)

    @property
    def losses(self) -> dict[int, float | None]:
        """Loss of each step of this start so far; None: NaN."""
        return {event["step"]: event["loss"] for event in self.events("step")}

    def events(self, kind: str) -> list[Event]:
        """Return the events of this kind that this start of the run has written so far."""
        previous_offset = -1
        while self._offset != previous_offset:
            previous_offset = self._offset
            batch, self._offset = events.read(self.run.events, previous_offset)
            self._events += batch
        return [event for event in self._events if event["kind"] == kind]

    def wait_for_step(self, step: int) -> None:
        """Wait until this step is reported.

        Raises:
            JobError: If the job ends before it, or hangs.
            CancelledError: If a user cancels the check.
        """
        self._wait(f"step {step:,}", lambda: any(reported_step >= step for reported_step in self.losses))

    def ask(self, name: str, **arguments: Any) -> Event:
        """Send a command and return its answer.

        Raises:
            JobError: If it is refused or not answered.
            CancelledError: If a user cancels the check.
        """
        command_id = self.run.append_command(name, **arguments)

        def find_answer() -> Event | None:
            return next((event for event in self.events("command") if event["id"] == command_id), None)

        answer_event = self._wait(f"an answer to {name}", find_answer)
        if not answer_event["accepted"]:
            raise JobError(f"The job refused the command {name}:", answer_event["message"])
        return answer_event

    def wait_for_checkpoint(self, step: int) -> Event:
        """Wait for the event of a step's checkpoint, and return it.

        Raises:
            JobError: If the job ends before it, or hangs.
            CancelledError: If a user cancels the check.
        """

        def find_event() -> Event | None:
            return next((event for event in self.events("checkpoint") if event["step"] == step), None)

        return self._wait(f"the checkpoint of step {step:,}", find_event)

    def wait_for_end(self) -> Status:
        """Wait until the job ends, and return its final status.

        Raises:
            JobError: If the job does not end.
            CancelledError: If a user cancels the check.
        """
        self._wait("its end", lambda: self._process.poll() is not None, may_end=True)
        return liveness.read_status(self.run)

    def rank_pid(self, rank: int) -> int | None:
        """Return the pid of a rank, the oldest process that writes to its log; None if not visible."""
        log = self.run.rank_log(rank)
        try:
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        rank_processes = [child for child in descendants if processes.output_of(child.pid) == log]
        return (
            min(rank_processes, key=lambda child: (child.create_time(), child.pid)).pid
            if rank_processes
            else None
        )

    def end(self) -> list[int]:
        """Kill all processes of the job; return the pids of survivors."""
        self._tree.kill()
        if self._tree.survivors():
            return [process.pid for process in self._tree.survivors()]
        self._process.wait()
        return []

    def log_end(self) -> str:
        """Return the ends of all its logs, for a bug report."""
        return log_ends(sorted(self.run.logs.glob("*.log")))

    def _wait(
        self, description: str, is_true: Callable[[], Result | None], *, may_end: bool = False
    ) -> Result:
        def poll() -> Result | None:
            self._tree.update()
            has_ended = self._process.poll() is not None
            result = is_true()
            if not result and has_ended and not may_end:
                raise JobError(f"The job ended before {description}:", self._end_reason())
            return result

        try:
            return self._waiter.wait(description, poll, self._deadline)
        except TooLateError:
            raise JobError(
                f"The job hung and was killed: waited {self._limit_s:g} s for {description}."
            ) from None

    def _end_reason(self) -> str:
        status = liveness.read_status(self.run)
        return status.error or f"the run is {status.state} (exit code {status.exit_code})."


def log_ends(paths: list[Path]) -> str:
    """Return the last complete lines of some logs, each with a heading; unreadable logs are omitted.

    Incomplete lines are omitted, because removing private data would not recognise a part of a path or name.
    """
    sections = []
    for path in paths:
        try:
            with open_plain(path) as file:
                start = file.seek(0, os.SEEK_END) - LOG_END_BYTES
                if start > 0:
                    file.seek(start - 1)
                    file.readline()
                else:
                    file.seek(0)
                text = file.read().decode("utf-8", errors="replace").strip()
        except (OSError, ValueError):
            continue
        if text:
            sections.append(f"--- {path.name}\n{text}")
    return "\n".join(sections)
