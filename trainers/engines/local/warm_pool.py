"""The warm pool: a process that has imported torch before a run needs it.

Most of the time between Start and the first step is spent importing torch. While the form is open and no run
is active, the page keeps one supervisor waiting, with a fork server (`fork_server`) as its child:

    page --stdin--> supervisor --stdin--> fork server, then torchrun --fork--> ranks

`take` writes one `StartRequest` (a line of JSON) to the supervisor's stdin. The supervisor then supervises
that run and gives the fork server torchrun's arguments, as in a cold start. If stdin is closed without a
request, both exit. They therefore end with the page in any case, and `_drop` only needs to close the pipe.

A fork server (the *template*) serves one run, and only while the code on disk is the code that it has
imported.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainers.engines.base import Preparation
from trainers.engines.local import torchrun
from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree, memory_bytes
from trainers.machine.threads import PeriodicThread


@dataclass(frozen=True, kw_only=True)
class StartRequest(torchrun.JsonLine):
    """The run for a waiting supervisor.

    Attributes:
        ticket: Token of the queue ticket; None: started from a terminal.
        environment: Environment variables to set before training, such as the visible GPUs.
    """

    run_dir: str
    resume_step: int | None = None
    ticket: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


POLL_EVERY_S = 1.0
# Delay after the page has opened, because it needs the cores at first.
BEGIN_AFTER_S = 1.5
# Delay after a template has failed, for example because torch cannot be imported.
RETRY_AFTER_S = 60.0
# The template is kept for this time after the form was last open.
EXPECTED_FOR_S = 15 * 60.0
# A template is started only if this much memory is available in addition to `SPARE_BYTES`. It is ended when
# less than `SPARE_BYTES` is available.
NEEDED_BYTES = 500 * 10**6
SPARE_BYTES = 10**9


@dataclass(frozen=True, kw_only=True)
class _WaitingSupervisor:
    """A waiting supervisor, and the fingerprint of the code that its template has imported."""

    process: subprocess.Popen[bytes]
    code: str


class WarmPool(Preparation):
    """The template of one runs directory. Thread-safe."""

    def __init__(self, runs_dir: Path, *, is_on: bool = True) -> None:
        self._runs_dir = runs_dir
        self._is_on = is_on and torchrun.can_fork()
        # True until the page has checked for active runs of an earlier page; no template starts meanwhile.
        self._is_anything_running = True
        self._waiting: _WaitingSupervisor | None = None
        # Supervisors that were told to exit and are still ending.
        self._ending: list[subprocess.Popen[bytes]] = []
        self._num_ranks = 0
        self._expected_at = float("-inf")
        self._not_before = float("-inf")
        self._lock = threading.Lock()
        self._thread = PeriodicThread("standby", self._maintain_once)
        self._is_closed = False

    def begin(self) -> None:
        """Maintain the pool in a thread, until `close`."""
        if self._is_on:
            self._thread.begin()

    def close(self) -> None:
        """End the template and start no more."""
        with self._lock:
            self._is_closed = True
            self._drop()
        self._thread.close()

    def expect(self, num_ranks: int) -> None:
        """Note that a run may start soon; the template can fork any number of ranks."""
        now = time.monotonic()
        if now - self._expected_at > EXPECTED_FOR_S:
            self._not_before = now + BEGIN_AFTER_S
        self._num_ranks, self._expected_at = num_ranks, now

    def note_running(self, is_anything_running: bool) -> None:
        """Note whether runs are active. Active runs get the entire machine: the pool is then empty."""
        self._is_anything_running = is_anything_running
        self._thread.wake()

    def take(self, request: StartRequest) -> subprocess.Popen[bytes] | None:
        """Assign a run to the waiting supervisor; return it, or None if none is usable."""
        with self._lock:
            waiting = self._waiting
            if waiting is None or not self._is_usable(waiting):
                # Free the memory for the cold start that follows.
                self._drop()
                return None
            # Set under the lock: `_maintain` must not start the next template before the page sees this run.
            self._waiting = None
            self._is_anything_running = True
            assert waiting.process.stdin is not None
            try:
                waiting.process.stdin.write(request.to_line())
                waiting.process.stdin.close()
            except OSError:
                return None  # it exited just now
            return waiting.process

    def ready_resources(self) -> dict[str, int] | None:
        """Return the expected number of ranks and the template's memory in bytes; None if there is none."""
        waiting = self._waiting
        if waiting is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            pids = [waiting.process.pid]
            pids += [child.pid for child in psutil.Process(waiting.process.pid).children(recursive=True)]
            num_bytes = sum(memory_bytes(pid) or 0 for pid in pids)
            return {"num_ranks": self._num_ranks, "memory_bytes": num_bytes}
        return None

    def processes(self) -> dict[int, float]:
        """Return pid and start time of all processes of the pool, including those that are still ending."""
        with self._lock:
            self._ending = self._still_ending()
            roots = [*self._ending, *([] if self._waiting is None else [self._waiting.process])]
        start_times = dict[int, float]()
        for root in roots:
            tree = ProcessTree(root.pid)
            tree.update(now=True)
            start_times |= tree.start_times()
        return start_times

    def _maintain_once(self) -> float:
        with self._lock:
            self._maintain()
        return POLL_EVERY_S

    def _maintain(self) -> None:
        waiting, now = self._waiting, time.monotonic()
        if waiting is not None and not (
            not self._is_anything_running
            and now - self._expected_at < EXPECTED_FOR_S
            and psutil.virtual_memory().available > SPARE_BYTES
            and self._is_usable(waiting)
        ):
            if waiting.process.poll() is not None:
                print("The warm pool ended unexpectedly; runs start without it for a while.", flush=True)
                self._not_before = now + RETRY_AFTER_S
            self._drop()
        if self._waiting is None and not self._is_closed and self._is_needed(now):
            self._waiting = self._start()

    def _is_needed(self, now: float) -> bool:
        return (
            now >= self._not_before
            and now - self._expected_at < EXPECTED_FOR_S
            and not self._is_anything_running
            and psutil.virtual_memory().available > SPARE_BYTES + NEEDED_BYTES
        )

    def _is_usable(self, waiting: _WaitingSupervisor) -> bool:
        """True if the process lives and its template has imported the code that is on disk now."""
        return waiting.process.poll() is None and waiting.code == plain_files.fingerprint_of_code()

    def _start(self) -> _WaitingSupervisor | None:
        command = [sys.executable, "-u", "-m", "trainers.engines.local.supervisor"]
        command += ["--wait", str(self._runs_dir.resolve())]
        code = plain_files.fingerprint_of_code()
        try:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment.for_a_child(keep=environment.FOR_NOTIFYING),
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # Not fatal: runs start without the pool, a few seconds slower.
            print(f"The warm pool cannot start: {explain(error)}", flush=True)
            self._not_before = time.monotonic() + EXPECTED_FOR_S
            return None
        return _WaitingSupervisor(process=process, code=code)

    def _still_ending(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._ending if process.poll() is None]

    def _drop(self) -> None:
        """End the template: it exits with its supervisor, whose stdin is closed here."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        assert waiting.process.stdin is not None
        with contextlib.suppress(OSError):
            waiting.process.stdin.close()
        self._ending = [*self._still_ending(), waiting.process]
        threading.Thread(target=waiting.process.wait, name="standby-end", daemon=True).start()
