"""Load of the machine, and processor time of a process, from /proc."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUIET_LOAD_PER_CORE = 0.25
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Conditions:
    """The machine's load before and after a measurement, and whether it was idle before."""

    began_load: tuple[float, float, float] = field(default_factory=os.getloadavg)

    @classmethod
    def note(cls) -> Conditions:
        """Record the machine's load, and warn on stderr if other programs use it."""
        conditions = cls()
        if not conditions.was_quiet:
            print(
                f"warning: the machine is not quiet (load average {conditions.began_load[0]:.2f} on "
                f"{os.cpu_count()} cores): take the figures as rough",
                file=sys.stderr,
            )
        return conditions

    @property
    def was_quiet(self) -> bool:
        """True if the machine was almost idle in the preceding minute."""
        return self.began_load[0] <= QUIET_LOAD_PER_CORE * (os.cpu_count() or 1)

    def report(self) -> dict[str, Any]:
        """Return the conditions that are reported with every figure."""
        return {
            "cores": os.cpu_count(),
            "load_average_before": [round(value, 2) for value in self.began_load],
            "load_average_after": [round(value, 2) for value in os.getloadavg()],
            "was_quiet_before": self.was_quiet,
        }


class CpuMeter:
    """The processor time of one process between two calls, without its terminated children."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._began_s = time.monotonic()
        self._began_cpu_s = self._cpu_s()

    def percent(self) -> float:
        """Return the share of one core since the meter was created."""
        used_s = self._cpu_s() - self._began_cpu_s
        return round(100 * used_s / (time.monotonic() - self._began_s), 2)

    def _cpu_s(self) -> float:
        # The second field is the name in parentheses and may contain spaces.
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float | int]:
    """Return the number of values, the median, the 95th percentile and the largest."""
    return {
        "n": len(values),
        "p50": round(percentile(values, 0.5), digits),
        "p95": round(percentile(values, 0.95), digits),
        "max": round(max(values), digits),
    }


def summary(values: Sequence[float], digits: int = 3) -> dict[str, float | int]:
    """Return the number of values, the median, the smallest and the largest."""
    return {
        "n": len(values),
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }
