"""The kernel's out-of-memory killer: which process it ends first, and whether it has ended one here."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path

# A rank, rather than the page, the supervisor or torchrun, which would take everything with them.
RANK_SCORE = 500
# From the end of a rank to the end of torchrun, which waits for the other ranks.
RECENT_S = 60.0
LOOK_EVERY_S = 1.0
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def be_ended_first() -> None:
    """Have the kernel end this process, or one that it starts, before others when memory runs out (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):  # a container may hide it
        if int(path.read_text()) < RANK_SCORE:
            path.write_text(str(RANK_SCORE))


def num_kills() -> int | None:
    """Return how many processes of this control group the kernel has ended for lack of memory.

    None where no counter can be read. The machine's own counter stands in where the group has none.
    """
    for path in (*_counters_of_group(), Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            if found := _COUNTER.search(path.read_text()):
                return int(found[1])
    return None


def _counters_of_group() -> list[Path]:
    """Return the files that may hold the counter of this process's group: version 2, then version 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in sorted(lines):  # "0::" (version 2) is first
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found.append(Path(f"/sys/fs/cgroup{group}", "memory.events"))
        elif "memory" in controllers.split(","):
            found.append(Path(f"/sys/fs/cgroup/memory{group}", "memory.oom_control"))
    return found


class KillWatch:
    """Remembers when the kernel last ended a process of this group for lack of memory."""

    def __init__(self) -> None:
        self._num_kills = num_kills()
        self._looked_at = time.monotonic()
        self._killed_at = float("-inf")

    def look(self, *, now: bool = False) -> None:
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
        """Whether it ended one within the last minute."""
        self.look(now=True)
        return time.monotonic() - self._killed_at < RECENT_S
