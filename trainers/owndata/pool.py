"""Does many small pieces of work on all cores, with results in order and few of them held at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_chunks(
    work: Callable[[Sequence[Item]], Result], items: Sequence[Item], chunk: int
) -> Iterator[Result]:
    """Yield `work` of one chunk of the items after the other; at most two for each core are under way."""
    # Threads: image decoders let go of Python's lock, and threads leave nothing behind when a rank is killed.
    with ThreadPoolExecutor(num_cores()) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for start in range(0, len(items), chunk):
                waiting.append(pool.submit(work, items[start : start + chunk]))
                if len(waiting) >= 2 * num_cores():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
