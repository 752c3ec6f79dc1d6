"""Limits of time and memory for reading own data, progress logs, and parallel work in processes."""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from trainers.data.own.problems import DataError
from trainers.machine import facilities, lifeline
from trainers.machine.host import num_cores

log = logging.getLogger(__name__)

# In addition to the memory held at the start. Preparing 5 GB of images or text takes a tenth of it.
MEMORY_BYTES = 4 * 2**30
PREPARE_S = 4 * 3600.0
MAX_DEPTH = 32  # of folders
EVERY_S = 2.0  # interval of progress logs

# The deadline (monotonic time), and the time limit in seconds.
_time: ContextVar[tuple[float, float]] = ContextVar("_time", default=(float("inf"), float("inf")))


class TookTooLongError(Exception):
    """The time limit for reading some data has been exceeded."""


def check_time() -> None:
    """Raise an error after the deadline. Long loops call it regularly.

    Raises:
        TookTooLongError: after the deadline; `bounded` converts it to a `DataError`.
    """
    if time.monotonic() > deadline():
        raise TookTooLongError


def deadline() -> float:
    """Return the deadline as monotonic time."""
    return _time.get()[0]


@contextlib.contextmanager
def bounded(path: str, *, seconds: float, memory_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Read data within limits of memory and time.

    Raises:
        DataError: if a limit is exceeded.
    """
    token = _time.set(min(_time.get(), (time.monotonic() + seconds, seconds)))
    try:
        with bounded_memory(memory_bytes):
            yield
    except TookTooLongError as error:
        given_s = _time.get()[1]
        given = f"{given_s / 60:,.0f} minutes" if given_s < 7200 else f"{given_s / 3600:,.0f} hours"
        raise _refused(path, f"reading it took more than {given}.") from error
    except MemoryError as error:
        message = f"reading it takes more than {memory_bytes / 2**30:.0f} GB of memory."
        raise _refused(path, message) from error
    finally:
        _time.reset(token)


def _refused(path: str, message: str) -> DataError:
    hint = "Make it smaller: fewer samples, columns or pixels at once."
    return DataError.of(path, "the data", message, hint)


@contextlib.contextmanager
def bounded_memory(memory_bytes: int) -> Iterator[None]:
    """Limit the private memory beyond what the process has (RLIMIT_DATA); only on Linux, which counts it."""
    status = facilities.read("/proc/self/status")
    if status is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held_kb = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:")), 0)
    finite = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(held_kb * 1024 + memory_bytes, *finite, 2**62), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def walk(
    top: Path, refused: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with the sorted names of its subfolders and files; links are not followed.

    As with `os.walk`, subfolders that the caller removes from the list are not entered.

    Args:
        refused: called for each folder that cannot be opened or is too deep.
    """
    depth_of_top = str(top).rstrip(os.sep).count(os.sep)
    for folder, inside, files in os.walk(top, onerror=refused):
        inside.sort()
        yield folder, inside, sorted(files)
        if inside and folder.rstrip(os.sep).count(os.sep) - depth_of_top >= MAX_DEPTH:
            inside.clear()
            if refused is not None:
                refused(OSError(0, f"at most {MAX_DEPTH} folders, one in the other", folder))


class ReadProgress:
    """Counts finished work and logs it, so that a rank that prepares data does not appear to hang.

    Args:
        doing: the work ("images decoded").
        total: number of items; 0 if unknown.
        scale: unit of the logged counts (1e6 for megabytes).
    """

    def __init__(self, doing: str, total: int, *, scale: float = 1.0) -> None:
        self._doing = doing
        self._of = f" of {total / scale:,.0f}" if total else ""
        self._scale = scale
        self._done = 0
        self._started = self._logged = time.monotonic()

    def add(self, count: int) -> None:
        """Count finished items; raises `TookTooLongError` after the deadline."""
        check_time()
        self._done += count
        now = time.monotonic()
        if now - self._logged >= EVERY_S:
            self._logged = now
            done = f"{self._done / self._scale:,.0f}"
            log.info("own data: %s%s %s in %.1f s", done, self._of, self._doing, now - self._started)


Result = TypeVar("Result")
# (indices of a chunk, memory for large results) -> small, picklable result.
Work = Callable[[range, memoryview], Result]

# Starting and ending processes costs as much as decoding some hundred images.
PROCESSES_FROM = 1_000


def in_chunks(
    work: Work[Result], count: int, chunk: int, room_bytes: int = 0
) -> Iterator[tuple[Result, memoryview]]:
    """Yield the result of `work` for each chunk of indices; two chunks per core are in progress.

    With many indices, forked processes do the work: Pillow holds the GIL while it decodes, so threads would
    share one core. The processes end with this one, even if it is killed. Results are pickled; pixels are
    too large for that (100 µs per image, benchmarks/LOG.md) and go into shared memory of `room_bytes`, which
    is yielded too and reused after the next result.

    Raises:
        OSError: if such a process crashed or was killed.
    """
    parts = (range(start, min(start + chunk, count)) for start in range(0, count, chunk))
    if count < PROCESSES_FROM or num_cores() == 1 or not facilities.are_available():
        room = memoryview(bytearray(room_bytes))
        yield from ((work(part, room), room) for part in parts)
        return
    rooms = [memoryview(mmap.mmap(-1, room_bytes) if room_bytes else b"") for _ in range(2 * num_cores())]
    waiting: deque[tuple[Future[Result], int]] = deque()
    with ProcessPoolExecutor(
        num_cores(),
        multiprocessing.get_context("fork"),
        initializer=_become_worker,
        initargs=(work, rooms, os.getpid()),
    ) as pool:
        try:
            for number, part in enumerate(parts):
                index = number % len(rooms)
                if len(waiting) == len(rooms):
                    # When the caller asks for the next result, it no longer needs the memory of this one.
                    done, index = waiting.popleft()
                    yield done.result(), rooms[index]
                waiting.append((pool.submit(_work_here, part, index), index))
            for done, index in waiting:
                yield done.result(), rooms[index]
        except BrokenProcessPool as error:
            raise OSError("a process that read some of it was ended by the system, or crashed") from error
        finally:
            pool.shutdown(cancel_futures=True)


# In a worker process: its function, and the memory shared with the parent.
_task: tuple[Work[Any], list[memoryview]]


def _become_worker(work: Work[Any], rooms: list[memoryview], parent_pid: int) -> None:
    global _task
    lifeline.die_with_parent(parent_pid)
    # The inherited handlers stop a run or clean up, which workers must not do.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A thread of the parent may have held the streams' locks during the fork, so using them could deadlock.
    sys.stdout = sys.stderr = None
    # Garbage collection would write to, and thus copy, every inherited page.
    gc.freeze()
    _task = work, rooms


def _work_here(part: range, index: int) -> Any:
    work, rooms = _task
    return work(part, rooms[index])
