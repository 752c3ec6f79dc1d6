"""The warm pool: ranks that have imported torch before a run needs them.

Most of the time between Start and the first step is spent importing torch. While the form is open and no run
is active, the page keeps one warm torchrun ready: a child process `warm_supervisor`, below it torchrun
with `num_ranks` ranks that have imported everything and wait. Processes and pipes:

    page --stdin--> warm_supervisor --one pipe per rank--> ranks

`take` writes one `Order` (a line of JSON) to the supervisor's stdin. The process then becomes the supervisor
of that run and forwards an order to its ranks. If stdin is closed without an order, all of them exit: so they
end with the page, however it ends, and `_drop` only needs to close the pipe.

A warm torchrun serves one run. It is usable only for exactly its number of ranks, and only while the code
on disk is the code that it has imported. No warm rank makes a CUDA call: the driver reads
CUDA_VISIBLE_DEVICES once, and the GPUs are known only from the order.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from trainers.files import plain_files, private_files
from trainers.files.plain_files import REPOSITORY, descriptor_of_plain
from trainers.machine import environment, host
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree, memory_bytes
from trainers.machine.threads import Passes

ADDRESSES = "TRAINERS_ORDERS"
# Set for ranks that run under a supervisor.
SUPERVISED = "TRAINERS_SUPERVISED"
# Offset in `commands.jsonl` from which the ranks read: commands that arrive during the start are theirs.
COMMANDS_OFFSET = "TRAINERS_COMMANDS_OFFSET"
# Set for ranks from the warm pool.
IS_WARM = "TRAINERS_WARM"


@dataclass(frozen=True, kw_only=True)
class Order:
    """The run to be trained by warm ranks.

    Attributes:
        ticket: Token of the queue ticket; None: started from a terminal.
        environment: Environment variables to set before training, such as the visible GPUs.
    """

    run_dir: str
    resume_step: int | None = None
    ticket: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """Serialize the order as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Order | None:
        """Parse an order; None for an incomplete line, which means that the sender has exited.

        Raises:
            ValueError: If the order is invalid.
        """
        if not line.endswith(b"\n"):
            return None
        raw: dict[str, Any] = json.loads(line)
        try:
            return cls(**raw)
        except TypeError as error:
            raise ValueError(f"an order makes no sense: {error}") from error


class Pipes:
    """The supervisor's side: one pipe per rank."""

    def __init__(self, num_ranks: int) -> None:
        self._pipes = [os.pipe() for _ in range(num_ranks)]

    @property
    def addresses(self) -> str:
        """Paths of the ranks' pipes, separated by commas; valid while this process lives."""
        return ",".join(f"/proc/{os.getpid()}/fd/{reading}" for reading, _ in self._pipes)

    def tell(self, order: Order) -> None:
        """Send the order to every rank. A rank that is still importing reads it from the pipe later."""
        for _, writing in self._pipes:
            os.write(writing, order.to_line())


def wait_for_order(rank: int) -> Order | None:
    """Block, as a rank, until the order arrives; None if the supervisor has exited.

    Raises:
        ValueError: If the order is invalid.
    """
    address = os.environ[ADDRESSES].split(",")[rank]
    try:
        with open(address, "rb") as pipe:  # noqa: PTH123 - a descriptor of another process, no path
            return Order.from_line(pipe.readline())
    except FileNotFoundError:
        return None


FOLDER = ".standby"
LOCK = "lock"
POLL_EVERY_S = 1.0
# Delay after a change of the expected run. A page that has just opened needs the cores for itself, and a
# user who tries several numbers of ranks starts one torchrun instead of several.
BEGIN_AFTER_S = 1.5
# Warm ranks are kept for this time after the form was last open.
KEPT_S = 15 * 60.0
# A torchrun is started only if this much memory per process plus `SPARE_BYTES` is available. It is ended when
# less than `SPARE_BYTES` is available.
NEEDED_BYTES_PER_RANK = 500 * 10**6
SPARE_BYTES = 10**9
# More ranks than cores would slow the machine down, and users who try out the form would start many. This
# number of ranks is allowed even on one core.
FEWEST_RANKS_ANYWHERE = 2


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A warm torchrun, and the fingerprint of the code that it has imported."""

    process: subprocess.Popen[bytes]
    num_ranks: int
    code: str


class WarmPool:
    """The warm ranks of one runs directory. Thread-safe."""

    def __init__(self, runs_dir: Path, *, is_on: bool = True) -> None:
        self._folder = runs_dir / FOLDER
        self._is_on = is_on
        # True until the page has checked, so that nothing starts while a run of an earlier page is active.
        self._is_anything_running = True
        self._kept: _Kept | None = None
        # Warm torchruns that were told to exit and are still ending.
        self._ending: list[subprocess.Popen[bytes]] = []
        self._num_ranks = 0
        self._expected_at = float("-inf")
        self._not_before = float("-inf")
        self._lock = threading.Lock()
        self._passes = Passes("standby", self._pass)
        self._is_swept = False
        self._is_closed = False

    def begin(self) -> None:
        """Maintain the pool in a thread, until `close`."""
        if not self._is_on:
            return
        self._passes.begin()

    def close(self) -> None:
        """End all warm ranks and start no more."""
        with self._lock:
            self._is_closed = True
            self._drop()
        self._passes.close()

    def expect(self, num_ranks: int) -> None:
        """Note that a run with this number of ranks may start soon."""
        now = time.monotonic()
        if num_ranks != self._num_ranks or now - self._expected_at > KEPT_S:
            self._not_before = now + BEGIN_AFTER_S
        self._num_ranks, self._expected_at = num_ranks, now

    def note_running(self, is_anything_running: bool) -> None:
        """Note whether runs are active. Active runs get the entire machine: the pool is then empty."""
        self._is_anything_running = is_anything_running
        self._passes.wake()

    def take(self, num_ranks: int, order: Order) -> subprocess.Popen[bytes] | None:
        """Assign a run to the warm ranks; return their supervisor, or None if no usable warm ranks exist."""
        with self._lock:
            kept = self._kept
            if kept is None or kept.num_ranks != num_ranks or not self._is_usable(kept):
                # The cold start that follows needs the memory and the cores of these ranks.
                self._drop()
                return None
            # Set under the lock: `_maintain` must not start the next torchrun before the page sees this run.
            self._kept = None
            self._is_anything_running = True
            assert kept.process.stdin is not None
            try:
                kept.process.stdin.write(order.to_line())
                kept.process.stdin.close()
            except OSError:
                return None  # it exited just now
            return kept.process

    def kept_ready(self) -> dict[str, int] | None:
        """Return the number of warm ranks and their total memory in bytes; None if the pool is empty."""
        kept = self._kept
        if kept is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [kept.process.pid]
            family += [child.pid for child in psutil.Process(kept.process.pid).children(recursive=True)]
            held = sum(memory_bytes(pid) or 0 for pid in family)
            return {"num_ranks": kept.num_ranks, "memory_bytes": held}
        return None

    def processes(self) -> dict[int, float]:
        """Return pid and start time of all processes of the pool, including those that are still ending."""
        with self._lock:
            self._ending = self._still_ending()
            roots = [*self._ending, *([] if self._kept is None else [self._kept.process])]
        found = dict[int, float]()
        for root in roots:
            tree = ProcessTree(root.pid)
            tree.update(now=True)
            found |= tree.start_times()
        return found

    def _pass(self) -> float:
        if not self._is_swept:
            self._is_swept = True
            _sweep(self._folder)
        with self._lock:
            self._maintain()
        return POLL_EVERY_S

    def _maintain(self) -> None:
        kept, now = self._kept, time.monotonic()
        if kept is not None and not (
            not self._is_anything_running
            and kept.num_ranks == self._num_ranks
            and now - self._expected_at < KEPT_S
            and psutil.virtual_memory().available > SPARE_BYTES
            and self._is_usable(kept)
        ):
            self._drop()
        if self._kept is None and not self._is_closed and self._is_wanted(now):
            self._kept = self._start()

    def _is_wanted(self, now: float) -> bool:
        needed = SPARE_BYTES + NEEDED_BYTES_PER_RANK * (self._num_ranks + 1)
        return (
            0 < self._num_ranks <= max(FEWEST_RANKS_ANYWHERE, host.num_cores())
            and now >= self._not_before
            and now - self._expected_at < KEPT_S
            and not self._is_anything_running
            and psutil.virtual_memory().available > needed
        )

    def _is_usable(self, kept: _Kept) -> bool:
        """True if the processes live and has imported the code that is on disk now."""
        return kept.process.poll() is None and kept.code == plain_files.fingerprint_of_code()

    def _start(self) -> _Kept | None:
        folder = self._folder / uuid.uuid4().hex
        command = [sys.executable, "-m", "trainers.engines.local.warm_supervisor", str(folder)]
        command += ["--nproc-per-node", str(self._num_ranks)]
        code = plain_files.fingerprint_of_code()
        try:
            private_files.make_folder(self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(descriptor_of_plain(self._folder / "log", flags), "wb") as log:
                process = subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    env=environment.for_a_child(keep=environment.FOR_NOTIFYING),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            # Not fatal: runs start without the pool, a few seconds slower.
            print(f"The warm pool cannot start: {explain(error)}", flush=True)
            self._not_before = time.monotonic() + KEPT_S
            return None
        return _Kept(process=process, num_ranks=self._num_ranks, code=code)

    def _still_ending(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._ending if process.poll() is None]

    def _drop(self) -> None:
        """End the warm ranks: they exit when their supervisor's stdin is closed."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        assert kept.process.stdin is not None
        with contextlib.suppress(OSError):
            kept.process.stdin.close()
        self._ending = [*self._still_ending(), kept.process]
        threading.Thread(target=kept.process.wait, name="standby-end", daemon=True).start()


def _sweep(folder: Path) -> None:
    """Remove folders of killed supervisors. A live one holds the lock of its folder."""
    for left in _folders(folder):
        try:
            descriptor = descriptor_of_plain(left / LOCK, os.O_RDWR)
        except (OSError, ValueError):
            continue  # being created or removed, or not one of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
