"""Memory and processors of this host."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from trainers.machine import facilities

# Environment variable with the temporary folder of a run's processes on this machine.
RUN_FOLDER = "TRAINERS_TEMP"


class MemoryFile:
    """Shared memory of this process; others open its `address` while this process lives. On systems without
    in-memory files it is a private temporary file, in the run's temporary folder if there is one. That folder
    is removed with the run, even if the owner was killed.
    """

    def __init__(self, name: str, size_bytes: int = 0) -> None:
        self._path: str | None = None
        if facilities.has_memory_files():
            self._fd = facilities.make_memory_file(name)
        else:
            folder = os.environ.get(RUN_FOLDER) or None
            self._fd, self._path = tempfile.mkstemp(prefix=f"{name}-", dir=folder)
        os.ftruncate(self._fd, size_bytes)
        self._size_bytes = size_bytes

    @property
    def address(self) -> str:
        """The path at which processes of the same user open the memory."""
        return self._path or facilities.path_of_descriptor(self._fd)

    def map(self) -> mmap.mmap:
        """Return the content as a writable mapping."""
        return mmap.mmap(self._fd, self._size_bytes)

    def close(self) -> None:
        """Close the file; existing mappings stay valid."""
        with contextlib.suppress(OSError):  # already closed
            os.close(self._fd)
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # noqa: PTH108 - one call, no object


# Names of CPU flags for bf16 in Linux, on x86 and on Arm.
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One measurement of a GPU, or of a process on the CPU."""

    name: str | None = None
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None

    @property
    def memory_free_bytes(self) -> int | None:
        """Free memory, or None if unknown."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


def num_cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(facilities.cores() or ()) or os.cpu_count() or 1


class ProcessReader:
    """Reads the CPU utilization and the memory of this process."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._process = psutil.Process()
        # psutil's first value is always 0, because the first call only starts the measurement.
        self._process.cpu_percent()

    def read(self) -> Reading:
        """Return the utilization since the last call; 100% means that all threads were busy."""
        busy = self._process.cpu_percent() / self._num_threads
        return Reading(
            name=cpu_name(),
            utilization_percent=round(min(100.0, busy), 1),
            memory_used_bytes=int(self._process.memory_info().rss),
            memory_total_bytes=int(psutil.virtual_memory().total),
        )


@functools.cache
def has_bf16() -> bool | None:
    """Return True if the CPU has bf16 instructions, or None if unknown.

    These are AMX, AVX512-BF16 or Arm's BF16; without them torch emulates bf16.
    """
    for line in (facilities.read("/proc/cpuinfo") or "").splitlines():
        name, _, listed = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return not _BF16_FLAGS.isdisjoint(listed.split())
    return None


@functools.cache
def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    for line in (facilities.read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def system_name() -> str:
    """Return the name and version of the operating system."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)


FIRST_SPAN_S = 0.1


class CoreReader:
    """Reads each core's utilization since the last reading.

    psutil's own `cpu_percent` stores the last reading per thread, and requests may run in any thread.
    """

    def __init__(self, times: Callable[[], Sequence[Any]] = lambda: psutil.cpu_times(percpu=True)) -> None:
        self._times = times
        self._last: list[tuple[float, float]] = []

    def read(self, *, afresh: bool = False) -> list[float]:
        """Return each core's utilization in percent; `afresh` measures a new interval."""
        if afresh or not self._last:
            self._last = self._sample()
            time.sleep(FIRST_SPAN_S)
        previous, self._last = self._last, self._sample()
        return [
            _percent(now_busy - busy, now_all - all_)
            for (busy, all_), (now_busy, now_all) in zip(previous, self._last, strict=False)
        ]

    def _sample(self) -> list[tuple[float, float]]:
        """Return each core's busy time and total time, in seconds."""
        samples = []
        for core in self._times():
            # A guest's time is included in `user`.
            all_s = sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0)
            samples.append((all_s - core.idle - getattr(core, "iowait", 0.0), all_s))
        return samples


def _percent(busy_s: float, all_s: float) -> float:
    return round(min(100.0, max(0.0, 100 * busy_s / all_s)), 1) if all_s > 0 else 0.0


def memory_bytes() -> tuple[int, int]:
    """Return the machine's used and total memory; memory that can be reclaimed counts as free."""
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available), int(memory.total)


def interfaces() -> dict[str, set[str]]:
    """Return the addresses of each network interface, without IPv6's "%interface" suffix."""
    return {
        name: {known.address.partition("%")[0] for known in addresses}
        for name, addresses in psutil.net_if_addrs().items()
    }


# Score for ranks: the kernel should kill a rank rather than the page, the supervisor or torchrun, whose end
# would end all ranks.
RANK_SCORE = 500
# Time between the end of a rank and the end of torchrun, which waits for the other ranks.
RECENT_S = 60.0
LOOK_EVERY_S = 1.0
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def be_ended_first() -> None:
    """Make the kernel kill this process and its children first when memory runs out (Linux)."""
    score = facilities.read("/proc/self/oom_score_adj")  # a container may hide the file
    if score is not None and int(score) < RANK_SCORE:
        facilities.write("/proc/self/oom_score_adj", str(RANK_SCORE))


def num_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for lack of memory.

    None if no counter is readable. If the group has no counter, the machine's is used.
    """
    for path in (*_counters_of_group(), Path("/proc/vmstat")):
        if match := _COUNTER.search(facilities.read(path) or ""):
            return int(match[1])
    return None


def _counters_of_group() -> list[Path]:
    """Return possible counter files of this process's control group: version 2, then version 1."""
    lines = (facilities.read("/proc/self/cgroup") or "").splitlines()
    counters = []
    for line in sorted(lines):  # "0::" (version 2) is first
        _, controllers, group = line.split(":", 2)
        if not controllers:
            counters.append(Path(f"/sys/fs/cgroup{group}", "memory.events"))
        elif "memory" in controllers.split(","):
            counters.append(Path(f"/sys/fs/cgroup/memory{group}", "memory.oom_control"))
    return counters


class KillWatch:
    """Remembers when the kernel last killed a process of this control group for lack of memory."""

    def __init__(self) -> None:
        self._num_kills = num_kills()
        self._looked_at = time.monotonic()
        self._killed_at = float("-inf")

    def sample(self, *, now: bool = False) -> None:
        """Read the counter, at most once a second."""
        at = time.monotonic()
        if not now and at - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = at
        num = num_kills()
        if num is not None and self._num_kills is not None and num > self._num_kills:
            self._killed_at = at
        self._num_kills = num

    @property
    def has_just_killed(self) -> bool:
        """True if the kernel killed a process within the last minute."""
        self.sample(now=True)
        return time.monotonic() - self._killed_at < RECENT_S
