"""Does many small pieces of work on all cores, with results in order and few of them held at once."""

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
# From the first to before the last of the pieces, and room for what is large.
Work = Callable[[range, memoryview], Result]

# To start processes and to take them down again costs as much as some hundred images.
PROCESSES_FROM = 1_000


def num_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_chunks(
    work: Work[Result], count: int, chunk: int, room_bytes: int = 0
) -> Iterator[tuple[Result, memoryview]]:
    """Yield what `work` made of one chunk of the pieces after the other; two for each core are under way.

    Many pieces are worked on in processes, which end with this one, however it ends. They are forks: what
    the work needs is in their memory already. What it returns travels as bytes, so what is large belongs
    into the room of so many bytes that it is given; that is yielded too, and used again after the next.

    Raises:
        OSError: when such a process was ended from outside, or crashed.
    """
    rooms = [_room(room_bytes) for _ in range(2 * num_cores())]
    if count < PROCESSES_FROM or num_cores() == 1 or not sys.platform.startswith("linux"):
        with ThreadPoolExecutor(num_cores()) as threads:
            yield from _in_turn(threads, lambda pieces, room: work(pieces, rooms[room]), count, chunk, rooms)
        return
    with ProcessPoolExecutor(
        num_cores(),
        multiprocessing.get_context("fork"),
        initializer=_become_worker,
        initargs=(work, rooms, os.getpid()),
    ) as processes:
        try:
            yield from _in_turn(processes, _work_here, count, chunk, rooms)
        except BrokenProcessPool as error:
            raise OSError("a process that read some of it was ended by the system, or crashed") from error


def _in_turn(
    pool: Executor, work: Callable[[range, int], Result], count: int, chunk: int, rooms: list[memoryview]
) -> Iterator[tuple[Result, memoryview]]:
    free = deque(range(len(rooms)))
    waiting: deque[tuple[Future[Result], int]] = deque()
    try:
        for start in range(0, count, chunk):
            room = free.popleft()
            waiting.append((pool.submit(work, range(start, min(start + chunk, count)), room), room))
            if not free:
                done, room = waiting.popleft()
                yield done.result(), rooms[room]
                free.append(room)
        while waiting:
            done, room = waiting.popleft()
            yield done.result(), rooms[room]
    finally:
        pool.shutdown(cancel_futures=True)


def _room(num_bytes: int) -> memoryview:
    """Return memory that this process shares with those it forks."""
    return memoryview(mmap.mmap(-1, num_bytes)) if num_bytes else memoryview(b"")


# Of a worker: what it does, and the rooms it shares with its parent.
_task: tuple[Work[Any], list[memoryview]]


def _become_worker(work: Work[Any], rooms: list[memoryview], parent_pid: int) -> None:
    global _task
    lifeline.die_with_parent(parent_pid)
    # What these mean to the parent, stopping a run or tidying up, is not for its workers to do.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A thread that wrote while the parent forked holds their locks for ever; nothing is written here.
    sys.stdout = sys.stderr = None
    # To look through all that was inherited would make a copy of each page of it.
    gc.freeze()
    _task = work, rooms


def _work_here(pieces: range, room: int) -> Any:
    work, rooms = _task
    return work(pieces, rooms[room])
