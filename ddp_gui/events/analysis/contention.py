"""When other programs took the processor from a run: its times then say little about the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddp_gui.events.tables import Numbers, Table

# On a machine with free cores others take nothing away.
MUCH_PERCENT = 30.0
FULL_IDLE_PERCENT = 10.0
# One sample a second: a browser that opens a page is none that counts.
SMOOTHED_SAMPLES = 5
MOST_SPANS = 50


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a run in which others took the processor; percent of all its cores, on average."""

    from_step: int
    to_step: int
    from_s: float
    to_s: float
    others_percent: float

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


def spans(load: Table) -> list[Span]:
    """Return when others took the processor, oldest first.

    Args:
        load: the columns `others` and `idle`, one row about every second.
    """
    columns = (load.column("others"), load.column("idle"), load.x("step"), load.x("time"))
    is_known = ~np.isnan(columns[0].astype(np.float64))
    others, idle, steps, seconds = (column.astype(np.float64)[is_known] for column in columns)
    if len(others) < SMOOTHED_SAMPLES:
        return []
    is_taken = (_smoothed(others) >= MUCH_PERCENT) & (_smoothed(idle) <= FULL_IDLE_PERCENT)
    edges = np.flatnonzero(np.diff(is_taken, prepend=False, append=False))
    found = []
    for begin, end in edges.reshape(-1, 2).tolist():
        first = max(0, begin - 1)
        found.append(
            Span(
                from_step=int(steps[first]),
                to_step=int(steps[end - 1]),
                from_s=float(seconds[first]),
                to_s=float(seconds[end - 1]),
                others_percent=float(np.mean(others[begin:end])),
            )
        )
    return found[-MOST_SPANS:]


def _smoothed(values: Numbers) -> Numbers:
    """Return the median of each sample and those around it; beyond the ends it counts as 0."""
    half = SMOOTHED_SAMPLES // 2
    padded = np.pad(np.nan_to_num(values), half)
    windows = np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED_SAMPLES)
    medians: Numbers = np.median(windows, axis=1)
    return medians
