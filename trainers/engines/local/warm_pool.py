"""Supervisors that have imported torch before they are needed."""

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
# Somebody looks after this run.
SUPERVISED = "TRAINERS_SUPERVISED"
# From where in `commands.jsonl` the ranks read: what is given while they start is theirs.
COMMANDS_OFFSET = "TRAINERS_COMMANDS_OFFSET"
# This rank was there before its run.
IS_WARM = "TRAINERS_WARM"


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which run to train, and from where.

    Attributes:
        ticket: the place in the line it is started for; None: started by hand.
        environment: variables that hold from now on, as the GPUs that may be seen.
    """

    run_dir: str
    resume_step: int | None = None
    ticket: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """Return it as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Order | None:
        """Return what a line says; None where there is none any more: whoever gives orders is gone.

        Raises:
            ValueError: when it makes no sense.
        """
        if not line.endswith(b"\n"):
            return None
        raw: dict[str, Any] = json.loads(line)
        try:
            return cls(**raw)
        except TypeError as error:
            raise ValueError(f"an order makes no sense: {error}") from error


class Pipes:
    """The supervisor's side: one pipe a rank."""

    def __init__(self, num_ranks: int) -> None:
        self._pipes = [os.pipe() for _ in range(num_ranks)]

    @property
    def addresses(self) -> str:
        """Where the ranks find them, as long as this process lives."""
        return ",".join(f"/proc/{os.getpid()}/fd/{reading}" for reading, _ in self._pipes)

    def tell(self, order: Order) -> None:
        """Give every rank the same order; one that does not wait yet finds it when it does."""
        for _, writing in self._pipes:
            os.write(writing, order.to_line())


def wait_for_order(rank: int) -> Order | None:
    """Wait, as a rank, for its order; None when none will come.

    Raises:
        ValueError: when the order makes no sense.
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
# The page that was just opened has the machine to itself first.
BEGIN_AFTER_S = 1.5
KEPT_S = 15 * 60.0
NEEDED_BYTES_PER_RANK = 500 * 10**6
SPARE_BYTES = 10**9
# More ranks than cores would take long to get ready, and whoever plays with the form starts many.
FEWEST_RANKS_ANYWHERE = 2


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Warm ranks, and the state of the code that they have imported."""

    process: subprocess.Popen[bytes]
    num_ranks: int
    code: str


class WarmPool:
    """The warm ranks of one runs directory; thread-safe."""

    def __init__(self, runs_dir: Path, *, is_on: bool = True) -> None:
        self._folder = runs_dir / FOLDER
        self._is_on = is_on
        # Until somebody has looked.
        self._is_anything_running = True
        self._kept: _Kept | None = None
        # Were let go, and take a moment to end.
        self._ending: list[subprocess.Popen[bytes]] = []
        self._num_ranks = 0
        self._expected_at = float("-inf")
        self._not_before = float("-inf")
        self._lock = threading.Lock()
        self._passes = Passes("standby", self._tend)
        self._is_swept = False
        self._is_closed = False

    def begin(self) -> None:
        """Look after them from now on, in a thread, until `close`."""
        if not self._is_on:
            return
        self._passes.begin()

    def close(self) -> None:
        """Let them go, and keep none any more."""
        with self._lock:
            self._is_closed = True
            self._drop()
        self._passes.close()

    def expect(self, num_ranks: int) -> None:
        """Note that somebody may soon start a run of so many ranks."""
        now = time.monotonic()
        if num_ranks != self._num_ranks or now - self._expected_at > KEPT_S:
            self._not_before = now + BEGIN_AFTER_S
        self._num_ranks, self._expected_at = num_ranks, now

    def note_running(self, is_anything_running: bool) -> None:
        """Note whether runs go on: then no rank is kept warm, and the runs have all of the machine."""
        self._is_anything_running = is_anything_running
        self._passes.wake()

    def take(self, num_ranks: int, order: Order) -> subprocess.Popen[bytes] | None:
        """Give warm ranks a run; return their supervisor, or None if none are warm for it."""
        with self._lock:
            kept = self._kept
            if kept is None or kept.num_ranks != num_ranks or not self._is_usable(kept):
                # What starts now without them needs the room they take.
                self._drop()
                return None
            self._kept = None
            self._is_anything_running = True
            assert kept.process.stdin is not None
            try:
                kept.process.stdin.write(order.to_line())
                kept.process.stdin.close()
            except OSError:
                return None  # it ended at this moment
            return kept.process

    def kept_ready(self) -> dict[str, int] | None:
        """Return how many ranks are warm and the memory they take in all; None if none are."""
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
        """Return all processes of warm ranks, also of those being let go, and when each was started."""
        with self._lock:
            self._ending = self._still_ending()
            roots = [*self._ending, *([] if self._kept is None else [self._kept.process])]
        found = dict[int, float]()
        for root in roots:
            tree = ProcessTree(root.pid)
            tree.update(now=True)
            found |= tree.start_times()
        return found

    def _tend(self) -> float:
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
            self._kept = self._started()

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
        """Tell whether they live, and have imported the code that is there now."""
        return kept.process.poll() is None and kept.code == plain_files.fingerprint_of_code()

    def _started(self) -> _Kept | None:
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
            # Runs start all the same, a few seconds later.
            print(f"The warm pool cannot start: {explain(error)}", flush=True)
            self._not_before = time.monotonic() + KEPT_S
            return None
        return _Kept(process=process, num_ranks=self._num_ranks, code=code)

    def _still_ending(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._ending if process.poll() is None]

    def _drop(self) -> None:
        """Let go the warm ranks: they end when their pipe is closed."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        assert kept.process.stdin is not None
        with contextlib.suppress(OSError):
            kept.process.stdin.close()
        self._ending = [*self._still_ending(), kept.process]
        threading.Thread(target=kept.process.wait, name="standby-end", daemon=True).start()


def _sweep(folder: Path) -> None:
    """Remove what killed ones left; those that live hold their lock."""
    for left in _folders(folder):
        try:
            descriptor = descriptor_of_plain(left / LOCK, os.O_RDWR)
        except (OSError, ValueError):
            continue  # it is just being made, or removed, or none of ours
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
