"""What looking at data and preparing it may take at most, of memory and time; more is refused in words."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from trainers.data.own.common.problems import DataError, DataProblem

# Beyond what the process holds when it begins. 5 GB of images or text are prepared with a tenth of it.
MEMORY_BYTES = 4 * 2**30
PREPARE_S = 4 * 3600.0
FEWER_HINT = "Make it smaller: fewer samples, columns or pixels at once."

# When the time is over, and how long it was.
_time: ContextVar[tuple[float, float]] = ContextVar("_time", default=(float("inf"), float("inf")))


class TookTooLongError(Exception):
    """The time that reading some data may take is over."""


def check_time() -> None:
    """Stop where the time is over; long loops ask now and then.

    Raises:
        TookTooLongError: caught by `bounded`.
    """
    if time.monotonic() > _time.get()[0]:
        raise TookTooLongError


def deadline() -> float:
    """Return the monotonic time at which the work has to end."""
    return _time.get()[0]


@contextlib.contextmanager
def bounded(path: str, *, seconds: float, memory_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Read data within bounds of memory and time.

    Raises:
        DataError: when it needs more.
    """
    token = _time.set(min(_time.get(), (time.monotonic() + seconds, seconds)))
    try:
        with _bounded_memory(memory_bytes):
            yield
    except TookTooLongError as error:
        message = f"reading it took more than {_duration(_time.get()[1])}."
        raise _refused(path, message, FEWER_HINT) from error
    except MemoryError as error:
        message = f"reading it takes more than {memory_bytes / 2**30:.0f} GB of memory."
        raise _refused(path, message, FEWER_HINT) from error
    finally:
        _time.reset(token)


@contextlib.contextmanager
def _bounded_memory(memory_bytes: int) -> Iterator[None]:
    """Let the system refuse memory beyond this; only on Linux, where it counts what is really private."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _private_bytes() + memory_bytes
    for limit in (soft, hard):
        wanted = wanted if limit == resource.RLIM_INFINITY else min(wanted, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _private_bytes() -> int:
    """Return what of this process counts towards RLIMIT_DATA now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.0f} hours"


def _refused(path: str, message: str, hint: str) -> DataError:
    return DataError(path, [DataProblem(where="the data", message=message, hint=hint)], 1)
