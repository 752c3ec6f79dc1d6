"""The processor as one process sees it: its cores, its name, and what this process takes of it.

A reading that cannot be had is None, never 0; without psutil there are fewer.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_CPU_INFO = Path("/proc/cpuinfo")
# As Linux names them, on x86 and on Arm.
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at a GPU or at a process on the CPU."""

    name: str | None = None
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None

    @property
    def memory_free_bytes(self) -> int | None:
        """What nobody uses; None where that is not known."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


@functools.cache
def find_psutil() -> ModuleType | None:
    """Return psutil; None where it is not installed: training goes on without its readings."""
    try:
        import psutil
    except ImportError:
        return None
    module: ModuleType = psutil
    return module


def num_cores() -> int:
    """Return the CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ProcessReader:
    """Reads this process on the CPU: its share of the cores it was given, and its memory."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        psutil = find_psutil()
        self._process = None if psutil is None else psutil.Process()
        if self._process is not None:
            # The first answer is always 0: it only starts the clock.
            self._process.cpu_percent()

    def read(self) -> Reading:
        """Return the utilization since the last call, 100% being all threads busy."""
        if self._process is None:
            return Reading(name=cpu_name())
        psutil = find_psutil()
        assert psutil is not None
        busy = self._process.cpu_percent() / self._num_threads
        return Reading(
            name=cpu_name(),
            utilization_percent=round(min(100.0, busy), 1),
            memory_used_bytes=int(self._process.memory_info().rss),
            memory_total_bytes=int(psutil.virtual_memory().total),
        )


def resident_bytes() -> int | None:
    """Return this process's resident memory."""
    psutil = find_psutil()
    return None if psutil is None else int(psutil.Process().memory_info().rss)


@functools.cache
def has_bf16() -> bool | None:
    """Return True if the CPU multiplies bf16 numbers itself, or None if unknown.

    That takes AMX, AVX512-BF16 or Arm's BF16; without these instructions torch emulates it.
    """
    try:
        with _CPU_INFO.open(encoding="utf-8") as file:
            for line in file:
                name, _, listed = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return not _BF16_FLAGS.isdisjoint(listed.split())
    except OSError:
        pass
    return None


@functools.cache
def cpu_name() -> str:
    """Return the processor's name, as the system gives it."""
    try:
        with _CPU_INFO.open(encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return "CPU"
