"""What a process and its children take of the machine: the evidence that one without a word is at work."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainers.machine import processes


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a process has used so far, its children included, and how it stands now.

    `wanted_s` is the time its threads have run or stood in line for a core: on a crowded machine a process
    at work may get little, but it wants much.
    """

    cpu_s: float
    wanted_s: float
    io_bytes: int
    is_stopped: bool
    waits_for_disk: bool


def sample(pid: int) -> Effort | None:
    """Return a process's effort; None when it is gone."""
    try:
        root = psutil.Process(pid)
        status = root.status()
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    if status == psutil.STATUS_ZOMBIE:
        return None
    cpu_s, io_bytes = 0.0, 0
    for process in family:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            io_bytes += _io_bytes(process)
    return Effort(
        cpu_s=cpu_s,
        wanted_s=sum(_wanted_s(process.pid) for process in family),
        io_bytes=io_bytes,
        is_stopped=status == psutil.STATUS_STOPPED,
        waits_for_disk=any(_waits_for_disk(process.pid) for process in family),
    )


def _io_bytes(process: psutil.Process) -> int:
    """Return what it has read and written, whether from a disk, a network disk or the system's memory."""
    if not hasattr(process, "io_counters"):
        return 0
    counters = process.io_counters()
    return int(getattr(counters, "read_chars", 0) + getattr(counters, "write_chars", 0))


def _wanted_s(pid: int) -> float:
    """Return how long its threads have run and waited for a core (proc(5), schedstat); 0 where hidden."""
    wanted_ns = 0
    for task in processes.names_in(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError, ValueError):
            ran_ns, waited_ns, _ = map(int, Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split())
            wanted_ns += ran_ns + waited_ns
    return wanted_ns / 1e9


def _waits_for_disk(pid: int) -> bool:
    """Tell whether one of its threads stands in the kernel where only a device can wake it."""
    for task in processes.names_in(f"/proc/{pid}/task"):
        stat = Path(f"/proc/{pid}/task/{task}/stat")
        with contextlib.suppress(OSError, IndexError):
            # The name before it may hold any character; the state is the first word after it.
            if stat.read_text(errors="replace").rpartition(")")[2].split()[0] == "D":
                return True
    return False
