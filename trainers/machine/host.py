"""The machine around the processes: how busy its cores are, and its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

FIRST_SPAN_S = 0.1


class CoreReader:
    """Reads how busy each core was since the last look.

    psutil's own `cpu_percent` remembers its last look by thread, and every request may come in another.
    """

    def __init__(self, times: Callable[[], Sequence[Any]] = lambda: psutil.cpu_times(percpu=True)) -> None:
        self._times = times
        self._last: list[tuple[float, float]] = []

    def read(self, *, afresh: bool = False) -> list[float]:
        """Return each core's use in percent; `afresh` looks twice, when the last look is long ago."""
        if afresh or not self._last:
            self._last = self._sample()
            time.sleep(FIRST_SPAN_S)
        before, self._last = self._last, self._sample()
        return [
            _percent(now_busy - busy, now_all - all_)
            for (busy, all_), (now_busy, now_all) in zip(before, self._last, strict=False)
        ]

    def _sample(self) -> list[tuple[float, float]]:
        """Return each core's busy time and all its time, in seconds."""
        found = []
        for core in self._times():
            # A guest's time is in `user` already.
            all_s = sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0)
            found.append((all_s - core.idle - getattr(core, "iowait", 0.0), all_s))
        return found


def _percent(busy_s: float, all_s: float) -> float:
    return round(min(100.0, max(0.0, 100 * busy_s / all_s)), 1) if all_s > 0 else 0.0


def memory_bytes() -> tuple[int, int]:
    """Return the machine's memory in use and in all; what can be given back at once is not in use."""
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available), int(memory.total)


def interfaces() -> dict[str, set[str]]:
    """Return the addresses of each network interface, without the % and the interface that IPv6 may add."""
    return {
        name: {known.address.partition("%")[0] for known in addresses}
        for name, addresses in psutil.net_if_addrs().items()
    }
