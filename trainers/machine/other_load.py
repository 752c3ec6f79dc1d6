"""How much of the processor is used by others than a job: then its times say little about the job."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass

from trainers.machine.processor import find_psutil


@dataclass(frozen=True, kw_only=True)
class OtherLoad:
    """Shares of the cores that this process may use, in percent of all of them together.

    Attributes:
        others_percent: busy for others than the job.
        idle_percent: not used by anybody.
    """

    others_percent: float
    idle_percent: float


class OtherLoadReader:
    """Reads what others use since the last call; the first one only starts the clock."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float] | None = None

    def read(self, job_cpu_s: float) -> OtherLoad | None:
        """Return the load since the last call; None where it cannot be read.

        Args:
            job_cpu_s: processor time that the job's processes on this machine have had so far, in seconds.
        """
        times = _times_of_our_cores()
        if times is None:
            return None
        before, self._before = self._before, (*times, job_cpu_s)
        if before is None:
            return None
        busy_s, idle_s, job_s = (now - then for now, then in zip(self._before, before, strict=True))
        all_s = busy_s + idle_s
        if all_s <= 0 or job_s < 0:
            return None
        others_s = max(0.0, busy_s - job_s)
        return OtherLoad(
            others_percent=round(100 * others_s / all_s, 1), idle_percent=round(100 * idle_s / all_s, 1)
        )


def own_cpu_s() -> float:
    """Return the processor time of this process, its threads and its loader workers, in seconds."""
    total, psutil = time.process_time(), find_psutil()
    if psutil is None:
        return total
    for child in multiprocessing.active_children():
        try:
            taken = psutil.Process(child.pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += taken.user + taken.system
    return total


def _times_of_our_cores() -> tuple[float, float] | None:
    """Return for how long these cores were busy and idle since the machine was started, in seconds."""
    psutil = find_psutil()
    if psutil is None:
        return None
    cores = psutil.cpu_times(percpu=True)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
    idle = busy = 0.0
    for number, core in enumerate(cores):
        if number not in ours:
            continue
        idle += core.idle + getattr(core, "iowait", 0.0)
        # Time of a guest is counted in user already. Stolen time went to other virtual machines.
        names = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")
        busy += sum(getattr(core, name, 0.0) for name in names)
    return busy, idle
