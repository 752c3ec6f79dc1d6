"""Runs many small tasks on all cores, yielding the results in order."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from trainers.machine import lifeline

Result = TypeVar("Result")
# Takes the indices of a chunk, and memory for large results.
Work = Callable[[range, memoryview], Result]

# Starting and ending processes costs as much as some hundred images.
PROCESSES_FROM = 1_000


def num_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_chunks(
    work: Work[Result], count: int, chunk: int, room_bytes: int = 0
) -> Iterator[tuple[Result, memoryview]]:
    """Yield the result of `work` for each chunk of indices; two chunks per core are in progress.

    With many indices, forked processes do the work; they end with this one, however it ends. Results are
    pickled, so large ones are written to shared memory of `room_bytes`. It is yielded too, and reused
    after the next result.

    Raises:
        OSError: when such a process crashed or was killed.
    """
    rooms = [memoryview(mmap.mmap(-1, room_bytes) if room_bytes else b"") for _ in range(2 * num_cores())]
    if count < PROCESSES_FROM or num_cores() == 1 or not sys.platform.startswith("linux"):
        with ThreadPoolExecutor(num_cores()) as threads:
            yield from _in_order(threads, lambda part, room: work(part, rooms[room]), count, chunk, rooms)
        return
    with ProcessPoolExecutor(
        num_cores(),
        multiprocessing.get_context("fork"),
        initializer=_become_worker,
        initargs=(work, rooms, os.getpid()),
    ) as processes:
        try:
            yield from _in_order(processes, _work_here, count, chunk, rooms)
        except BrokenProcessPool as error:
            raise OSError("a process that read some of it was ended by the system, or crashed") from error


def _in_order(
    pool: Executor, work: Callable[[range, int], Result], count: int, chunk: int, rooms: list[memoryview]
) -> Iterator[tuple[Result, memoryview]]:
    waiting: deque[tuple[Future[Result], int]] = deque()
    try:
        for number, start in enumerate(range(0, count, chunk)):
            room = number % len(rooms)
            if len(waiting) == len(rooms):
                done, room = waiting.popleft()
                yield done.result(), rooms[room]
            waiting.append((pool.submit(work, range(start, min(start + chunk, count)), room), room))
        for done, room in waiting:
            yield done.result(), rooms[room]
    finally:
        pool.shutdown(cancel_futures=True)


# Of a worker: its function, and the memory it shares with its parent.
_task: tuple[Work[Any], list[memoryview]]


def _become_worker(work: Work[Any], rooms: list[memoryview], parent_pid: int) -> None:
    global _task
    lifeline.die_with_parent(parent_pid)
    # The parent's handlers stop a run or clean up, which its workers must not do.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A thread of the parent may have held their locks when it forked; nothing is written here.
    sys.stdout = sys.stderr = None
    # A garbage collection would copy every inherited page.
    gc.freeze()
    _task = work, rooms


def _work_here(part: range, room: int) -> Any:
    work, rooms = _task
    return work(part, rooms[room])
