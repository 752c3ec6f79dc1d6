"""Disk usage of runs, and a forecast of when the live runs will fill the disk."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

SHORTEST_SPAN_S = 30.0
WINDOW_S = 600.0
MATTERS_BELOW_S = 365 * 86_400.0
BYTES_PER_BLOCK = 512

ForecastState = Literal["no_run", "measuring", "not_growing", "too_slow", "lasts"]


class DiskForecast:
    """Stores the size of the live runs' directories over the last ten minutes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._runs: frozenset[str] | None = None  # None: not read yet
        self._lock = threading.Lock()

    def add(self, size_of: Mapping[str, int], now_s: float) -> None:
        """Add the sizes of all live runs; a change in the set of live runs restarts the measurement."""
        runs = frozenset(size_of)
        with self._lock:
            if runs != self._runs:
                self._samples.clear()
                self._runs = runs
            if not runs:
                return
            self._samples.append((now_s, sum(size_of.values())))
            while len(self._samples) > 2 and now_s - self._samples[1][0] >= WINDOW_S:
                self._samples.popleft()

    def sample(self, free_bytes: int) -> dict[str, Any]:
        """Return the write rate, its measurement interval, and the time until the disk is full."""
        with self._lock:
            if not self._samples:
                return _forecast("measuring" if self._runs is None else "no_run", 0.0)
            (first_s, first_bytes), (last_s, last_bytes) = self._samples[0], self._samples[-1]
        span_s = last_s - first_s
        if span_s < SHORTEST_SPAN_S:
            return _forecast("measuring", span_s)
        bytes_per_s = (last_bytes - first_bytes) / span_s
        if bytes_per_s <= 0:
            return _forecast("not_growing", span_s, 0.0)
        lasts_s = free_bytes / bytes_per_s
        state: ForecastState = "too_slow" if lasts_s > MATTERS_BELOW_S else "lasts"
        return _forecast(state, span_s, bytes_per_s, lasts_s)


def _forecast(
    state: ForecastState, span_s: float, bytes_per_s: float | None = None, lasts_s: float | None = None
) -> dict[str, Any]:
    return {
        "state": state,
        "measured_over_s": span_s,
        "needs_s": SHORTEST_SPAN_S,
        "bytes_per_s": bytes_per_s,
        "lasts_s": lasts_s,
    }


def taken_bytes(folder: Path) -> int:
    """Return the disk space used by everything below a folder, as `du` counts it."""
    found = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    found += _blocks(entry) * BYTES_PER_BLOCK
        except OSError:  # deleted meanwhile (an old checkpoint), or not readable
            continue
    return found


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks
    except FileNotFoundError:
        return 0


def nearest_folder(path: Path) -> Path:
    """Return the path, or its nearest existing parent, which is on the same disk."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
