"""Limits on reading data: memory, time and depth of folders; and the progress of long work."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from trainers.data.own.common.problems import DataError, DataProblem

log = logging.getLogger(__name__)

# In addition to what the process holds at first. Preparing 5 GB of images or text takes a tenth of it.
MEMORY_BYTES = 4 * 2**30
PREPARE_S = 4 * 3600.0
MAX_DEPTH = 32  # of folders
EVERY_S = 2.0  # progress is logged

# The monotonic time at which the work has to end, and the seconds it was given.
_time: ContextVar[tuple[float, float]] = ContextVar("_time", default=(float("inf"), float("inf")))


class TookTooLongError(Exception):
    """The time for reading some data is over."""


def check_time() -> None:
    """Stop if the time is over; long loops call it now and then.

    Raises:
        TookTooLongError: caught by `bounded`.
    """
    if time.monotonic() > deadline():
        raise TookTooLongError


def deadline() -> float:
    """Return the monotonic time at which the work has to end."""
    return _time.get()[0]


@contextlib.contextmanager
def bounded(path: str, *, seconds: float, memory_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Read data within limits of memory and time.

    Raises:
        DataError: when it needs more.
    """
    token = _time.set(min(_time.get(), (time.monotonic() + seconds, seconds)))
    try:
        with _bounded_memory(memory_bytes):
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
    return DataError(path, [DataProblem(where="the data", message=message, hint=hint)], 1)


@contextlib.contextmanager
def _bounded_memory(memory_bytes: int) -> Iterator[None]:
    """Limit private memory; only on Linux, where the system counts it."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text().splitlines()
    held_kb = next((int(line.split()[1]) for line in status if line.startswith("VmData:")), 0)
    finite = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(held_kb * 1024 + memory_bytes, *finite, 2**62), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def walk(
    top: Path, refused: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with the sorted names of the folders and files in it; links are not followed.

    The caller may remove folders from the list, which are then not entered.

    Args:
        refused: is called for each folder that cannot be opened, or is too deep.
    """
    depth_of_top = str(top).rstrip(os.sep).count(os.sep)
    for folder, inside, files in os.walk(top, onerror=refused):
        inside.sort()
        yield folder, inside, sorted(files)
        if inside and folder.rstrip(os.sep).count(os.sep) - depth_of_top >= MAX_DEPTH:
            inside.clear()
            if refused is not None:
                refused(OSError(0, f"at most {MAX_DEPTH} folders, one in the other", folder))


class Progress:
    """Counts finished work and logs it, so that a rank that prepares data does not seem to hang.

    Args:
        doing: the work ("images decoded").
        total: how many there are; 0 if unknown.
        scale: the unit in which counts are logged (1e6 for megabytes).
    """

    def __init__(self, doing: str, total: int, *, scale: float = 1.0) -> None:
        self._doing = doing
        self._of = f" of {total / scale:,.0f}" if total else ""
        self._scale = scale
        self._done = 0
        self._started = self._logged = time.monotonic()

    def add(self, count: int) -> None:
        """Count some more; stops the work if its time is over."""
        check_time()
        self._done += count
        if time.monotonic() - self._logged >= EVERY_S:
            self._log()

    def finish(self) -> None:
        """Log the sum if it took long."""
        if time.monotonic() - self._started >= EVERY_S:
            self._log()

    def _log(self) -> None:
        self._logged = time.monotonic()
        took_s = self._logged - self._started
        done = self._done / self._scale
        log.info("own data: %s%s %s in %.1f s", f"{done:,.0f}", self._of, self._doing, took_s)
