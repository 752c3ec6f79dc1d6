"""The time of day as it goes on from the start of this process: nobody who sets the clock makes it jump."""

from __future__ import annotations

import time


def _elapsed_s() -> float:
    # Goes on while the machine sleeps, where the system has such a clock.
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock_id)


def hour_and_minute(unix_s: float) -> str:
    """Return a time of day in this machine's time zone, which it names: 14:05 CET."""
    return time.strftime("%H:%M %Z", time.localtime(unix_s))


_OFFSET_S = time.time() - _elapsed_s()


def now_unix_s() -> float:
    """Return the seconds since 1970; of two calls in one process the later one never gives less."""
    return _OFFSET_S + _elapsed_s()
