"""The curves of a run as points over an axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddp_gui.events.tables import Smoothing, thin
from ddp_gui.learn.report import number_words
from ddp_gui.learn.report.measured import Measured

Numbers = npt.NDArray[np.float64]

# The columns of steps that are curves.
OF_STEPS = ("loss", "throughput")
VALIDATION = "validation_loss"
METRIC = "metric:"
AXES = {
    "step": "optimizer step",
    "samples": "samples trained with, all ranks together",
    "time": "seconds since the start",
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points in the order of their x; a gap is NaN."""

    x: Numbers
    y: Numbers

    def thinned(self, max_points: int) -> Curve:
        """Return at most so many of its points, such that every peak and dip stays visible."""
        chosen = thin(self.x, self.y, max_points)
        return Curve(x=self.x[chosen], y=self.y[chosen])

    def value_at(self, x: float) -> float | None:
        """Return the value at the place nearest to x; None where there is none."""
        if len(self.x) == 0:
            return None
        near = int(np.argmin(np.abs(self.x - x)))
        value = float(self.y[near])
        return value if np.isfinite(value) else None


EMPTY = Curve(x=np.empty(0), y=np.empty(0))


def curve_of(run: Measured, name: str, axis: str, smoothing: float = 0) -> Curve:
    """Return a curve of a run; without points where it was not measured.

    Args:
        name: `loss`, `throughput`, `validation_loss` or `metric:NAME`.
        axis: one of `AXES`.
        smoothing: over how much of the axis, for curves of steps.
    """
    is_of_steps = name in OF_STEPS
    table = run.series.steps if is_of_steps else run.series.evaluation_table
    if name not in table.fields or table.length == 0:
        return EMPTY
    if is_of_steps and smoothing > 1:
        over: Smoothing = "samples" if axis == "samples" else "time" if axis == "time" else "step"
        y = run.series.smoothed(name, smoothing, over, 0, table.length)
    else:
        y = table.column(name).astype(np.float64)
    steps = table.x("step")
    places = run.samples_at(steps) if axis == "samples" else table.x("time" if axis == "time" else "step")
    x: Numbers = np.asarray(places, np.float64)
    y = np.where(np.isfinite(y), y, np.nan)
    is_there = np.isfinite(x) if is_of_steps else np.isfinite(x) & np.isfinite(y)
    # A clock that was set back must not draw to the left.
    x = np.maximum.accumulate(x[is_there]) if is_there.any() else x[is_there]
    return Curve(x=x, y=y[is_there])


def words_of(name: str) -> str:
    """Return what a curve is called."""
    if name == "loss":
        return "training loss"
    if name in OF_STEPS:
        return name
    if name == VALIDATION:
        return "validation loss"
    return f"validation {number_words.metric_label(name.removeprefix(METRIC))}"


def axis_words_of(name: str) -> str:
    """Return what is written beside a curve's numbers."""
    return "samples per second, all ranks" if name == "throughput" else words_of(name)


def is_share(name: str) -> bool:
    """Tell whether a curve's numbers are shares of a whole."""
    return name.removeprefix(METRIC) in number_words.SHARES
