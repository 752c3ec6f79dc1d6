"""Columns of numbers from events, smoothed and thinned for charts."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler, NaNMinMaxLTTBDownsampler

from trainers.contract.config import Config

MAX_POINTS = 2_000
# Maximum number of points of a zoomed chart, which shows slightly more than `MAX_POINTS` without thinning.
MAX_POINTS_OF_A_RANGE = 2_500
MIN_CAPACITY = 16
GROWTH = 1.5
SHOWN_DIGITS = 5
MIN_AXIS = 1e-6

Axis = Literal["step", "time"]
# The axis of a moving average.
Smoothing = Literal["step", "samples", "time"]
STEP_SPANS = (10, 20, 30, 50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000)
# In samples or seconds.
SPANS = tuple(float(f"{digit}e{power}") for power in range(-2, 10) for digit in (1, 2, 3, 5))
# Exponent beyond which a value has no weight in double precision.
NO_WEIGHT = 36.0
# Range of exponents for one piece of a sum: double precision ends at 709, and single-precision values use up
# to 88.
MAX_EXPONENT_SPAN = 500.0
Numbers = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
Trace = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ChartView:
    """A viewer's settings of the charts of steps.

    Attributes:
        axis: the x axis, which is the optimizer step or the seconds since the start.
        smoothing: the span of the exponential moving averages, in the unit of `smooth_over`; 0: none.
        smooth_over: the axis of the averages: steps, samples of all ranks together, or seconds. Runs with
            different global batches are comparable only if averaged over the same number of samples.
        smoothed: the columns with a moving average, computed from all steps, not from the points drawn.
        nodes: of a run on several machines, those whose ranks are shown individually; None: all.
    """

    axis: Axis = "step"
    smoothing: float = 0
    smooth_over: Smoothing = "step"
    smoothed: tuple[str, ...] = ("loss",)
    nodes: frozenset[int] | None = None

    def shows(self, rank: int, ranks_a_node: int) -> bool:
        """Return True if a rank is shown individually."""
        return self.nodes is None or rank // ranks_a_node in self.nodes


PLAIN_VIEW = ChartView()


def span_of(smoothing: float, smooth_over: Smoothing) -> float:
    """Return the span used for smoothing, which is the next larger span of a fixed list; 0: no smoothing.

    The list is short so that many viewers share few encodings.
    """
    if not smoothing > 0 or (smooth_over == "step" and smoothing <= 1):
        return 0
    spans = STEP_SPANS if smooth_over == "step" else SPANS
    return next((span for span in spans if span >= smoothing), spans[-1])


class GrowingTable:
    """A growing table of numbers, in which each row has a step, a time and an event number.

    Values are in single precision, which has seven digits; a screen shows five.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = {name: row for row, name in enumerate(fields)}
        self.length = 0
        self._seq = np.empty(MIN_CAPACITY, np.int64)
        self._step = np.empty(MIN_CAPACITY, np.int64)
        self._seconds = np.empty(MIN_CAPACITY, np.float64)
        self._values = np.empty((len(fields), MIN_CAPACITY), np.float32)

    def extend(
        self, seq: npt.ArrayLike, step: npt.ArrayLike, seconds: npt.ArrayLike, values: npt.ArrayLike
    ) -> None:
        """Append rows; `values` has one row per field."""
        seq = np.asarray(seq, np.int64)
        end = self.length + len(seq)
        self._reserve(end)
        new_rows = slice(self.length, end)
        self._seq[new_rows], self._step[new_rows], self._seconds[new_rows] = seq, step, seconds
        self._values[:, new_rows] = values
        self.length = end

    def append(self, seq: int, step: int, seconds: float, values: Mapping[str, float | None]) -> None:
        """Append one row; missing values and nulls are gaps."""
        row = [[np.nan if (value := values.get(name)) is None else value] for name in self.fields]
        self.extend([seq], [step], [seconds], row)

    def cut_from(self, step: int) -> None:
        """Drop the rows at `step` and after it."""
        self.length = int(np.searchsorted(self._step[: self.length], step))

    def since(self, seq: int) -> int:
        """Return the position of the first row of event `seq` or later."""
        return int(np.searchsorted(self._seq[: self.length], seq))

    def between(self, low: float, high: float, axis: Axis) -> tuple[int, int]:
        """Return the positions of the rows of a range, plus one row on each side for lines to the edges."""
        x = self.x(axis)
        first, last = np.searchsorted(x, low, "left"), np.searchsorted(x, high, "right")
        return max(0, int(first) - 1), min(self.length, int(last) + 1)

    def x(self, axis: Axis) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
        """Return the x values of the rows; a view that changes with the table."""
        return (self._step if axis == "step" else self._seconds)[: self.length]

    def keys(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return event number, step and seconds of every row; views that change with the table."""
        return self._seq[: self.length], self._step[: self.length], self._seconds[: self.length]

    def column(self, name: str) -> npt.NDArray[np.float32]:
        """Return a field's values; a view that changes with the table."""
        return self._values[self.fields[name], : self.length]

    def smoothed(
        self,
        name: str,
        span: float,
        first: int,
        last: int,
        positions: npt.ArrayLike | None = None,
        *,
        is_weighted: bool = False,
    ) -> Numbers:
        """Return the exponential moving average of a slice's rows; NaN for rows without a number.

        Ignores rows more than eight spans back, whose weight is below a millionth.

        Args:
            span: the span in the unit of `positions`, or in rows if there are no positions.
            positions: positions of all rows on the axis of the average.
            is_weighted: True to weight each row by its distance from the previous one, such as a step by its
                samples.
        """
        if positions is None:
            start, distances = max(0, first - math.ceil(8 * span)), None
        else:
            x = np.asarray(positions, np.float64)
            start = int(np.searchsorted(x[:first], x[first] - 8 * span)) if first < last else first
            distances = np.diff(x[start:last], prepend=x[start - 1] if start else 0.0)
        values = self.column(name)[start:last].astype(np.float64)
        averages = moving_average(values, span, distances, distances if is_weighted else None)
        # The line of a loss ends where the loss becomes NaN.
        averages[~np.isfinite(values)] = np.nan
        return averages[first - start :]

    def _reserve(self, num_rows: int) -> None:
        capacity = len(self._seq)
        if num_rows <= capacity:
            return
        new_capacity = max(num_rows, int(capacity * GROWTH))
        self._seq = _enlarged(self._seq, self.length, new_capacity)
        self._step = _enlarged(self._step, self.length, new_capacity)
        self._seconds = _enlarged(self._seconds, self.length, new_capacity)
        self._values = _enlarged(self._values, self.length, new_capacity)


def moving_average(
    values: Numbers, span: float, distances: Numbers | None = None, weights: Numbers | None = None
) -> Numbers:
    """Return the exponential moving average without initial bias; NaN before the first number.

    Args:
        span: the last of equally spaced values has the weight 2 / (span + 1), as in pandas.
        distances: each value's distance from the previous one, in the unit of the span; None: 1.
        weights: the values' weights; None: all are equal.
    """
    if distances is None:
        exponents = np.full(len(values), -np.log1p(-2.0 / (span + 1)))
    else:
        with np.errstate(over="ignore"):
            exponents = np.clip(2.0 / span * distances, 0.0, NO_WEIGHT)
        if len(values) and exponents.min() == NO_WEIGHT:
            return values.copy()  # all distances are larger than the reach of the average
    is_number = np.isfinite(values)
    shares = np.ones(len(values)) if weights is None else weights
    weighted, shares = np.where(is_number, values, 0.0) * shares, is_number * shares
    # Sum in pieces, so that the weights stay within the range of double precision.
    ages = np.cumsum(exponents)
    edges = np.searchsorted(ages, np.arange(0.0, ages[-1] if len(ages) else 0.0, MAX_EXPONENT_SPAN), "right")
    averages = np.empty(len(values))
    total = weight = 0.0
    for begin, end in itertools.pairwise([0, *edges[1:].tolist(), len(values)]):
        if begin == end:
            continue
        # The weight of each value relative to the beginning of its piece. Dividing by it before the
        # cumulative sum and multiplying after it computes all averages of the piece without a Python loop.
        powers = np.exp(-(ages[begin:end] - ages[begin] + exponents[begin]))
        totals = (total + np.cumsum(weighted[begin:end] / powers)) * powers
        counts = (weight + np.cumsum(shares[begin:end] / powers)) * powers
        with np.errstate(invalid="ignore"):
            averages[begin:end] = totals / counts
        total, weight = float(totals[-1]), float(counts[-1])
    return averages


def samples_at(steps: npt.ArrayLike, global_batch: int | None, num_train: int | None) -> Numbers:
    """Return the samples that all ranks together had processed after some steps; NaN if unknown.

    Args:
        global_batch: samples of a complete step.
        num_train: samples in an epoch, whose last step has the remaining samples.
    """
    steps = np.atleast_1d(np.asarray(steps, np.float64))
    if global_batch is None or num_train is None:
        return np.full(len(steps), np.nan)
    steps_per_epoch = -(-num_train // global_batch)
    epochs = np.floor(steps / steps_per_epoch)
    samples = epochs * num_train + np.minimum((steps - epochs * steps_per_epoch) * global_batch, num_train)
    return np.asarray(samples, np.float64)


def thin(x: npt.NDArray[np.generic], y: npt.NDArray[np.floating], max_points: int) -> Positions:
    """Return the indices of the points to draw, such that every peak and dip stays visible."""
    if len(x) <= max_points:
        return np.arange(len(x))
    sampler = NaNMinMaxLTTBDownsampler() if np.isnan(y).any() else MinMaxLTTBDownsampler()
    # The library needs contiguous memory, and an even number of at least four points.
    axes = [np.ascontiguousarray(x)] if _can_be_divided(x, max_points) else []
    chosen: Positions = sampler.downsample(*axes, np.ascontiguousarray(y), n_out=max_points).astype(np.int64)
    return chosen


def _can_be_divided(x: npt.NDArray[Any], num_ranges: int) -> bool:
    """Return True if an axis is long enough for its precision; else the library panics (no Exception)."""
    first, last = float(x[0]), float(x[-1])
    precision = np.finfo(np.float64).eps * max(abs(first), abs(last), MIN_AXIS)
    # The library uses four times as many ranges; the remaining factor is a margin.
    return bool(math.isfinite(last - first) and last - first > 128 * num_ranges * precision)


def shown(values: npt.NDArray[np.floating]) -> Numbers:
    """Round to a few significant digits, enough for a screen, to save bytes."""
    numbers = values.astype(np.float64)
    is_plain = np.isfinite(numbers) & (numbers != 0)
    digits = SHOWN_DIGITS - 1 - np.floor(np.log10(np.abs(numbers[is_plain])))
    # Powers of ten above 22 are not exact, so values below 1e-18 keep fewer digits.
    scale = 10.0 ** np.clip(digits, -300, 22)
    numbers[is_plain] = np.round(numbers[is_plain] * scale) / scale
    numbers[np.isinf(numbers)] = np.nan
    return numbers


def shown_x(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return steps unchanged, and seconds rounded to milliseconds."""
    rounded: npt.NDArray[Any] = np.round(x, 3)
    return rounded


Kind = TypeVar("Kind", bound=np.generic)


def _enlarged(old: npt.NDArray[Kind], length: int, capacity: int) -> npt.NDArray[Kind]:
    new = np.empty((*old.shape[:-1], capacity), old.dtype)
    new[..., :length] = old[..., :length]
    return new


MAX_BINS = 60
# Characters for the points, from the lowest to the highest loss, and for a bin without data.
LEVELS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
NOTHING = "."

Steps = npt.NDArray[np.int64]
Losses = npt.NDArray[np.float64]


@dataclass
class BinnedCurve:
    """Means over bins with equal numbers of steps. If there are too many bins, their size is doubled."""

    steps_per_piece: int = 1
    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, steps: Steps, losses: Losses) -> None:
        """Add steps (counted from 1) with their losses; steps without a loss are skipped."""
        is_number = np.isfinite(losses)
        steps, losses = steps[is_number], losses[is_number]
        if not len(steps):
            return
        while (int(steps.max()) - 1) // self.steps_per_piece >= MAX_BINS:
            self._double()
        bins = (steps - 1) // self.steps_per_piece
        sums, counts = np.bincount(bins, losses), np.bincount(bins)
        missing = len(sums) - len(self.sums)
        self.sums += [0.0] * missing
        self.counts += [0] * missing
        for index in np.flatnonzero(counts).tolist():
            self.sums[index] += float(sums[index])
            self.counts[index] += int(counts[index])

    def cut_from(self, step: int) -> None:
        """Drop the bins from the bin of `step` on."""
        first = (step - 1) // self.steps_per_piece
        del self.sums[first:], self.counts[first:]

    def encode(self) -> dict[str, Any] | None:
        """Return the lowest and highest mean, and each bin's level as a character; None without data."""
        means = [total / count for total, count in zip(self.sums, self.counts, strict=True) if count]
        if not means:
            return None
        low, high = min(means), max(means)
        scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
        points = "".join(
            LEVELS[round((total / count - low) * scale)] if count else NOTHING
            for total, count in zip(self.sums, self.counts, strict=True)
        )
        return {"low": float(f"{low:.5g}"), "high": float(f"{high:.5g}"), "points": points}

    def _double(self) -> None:
        self.steps_per_piece *= 2
        self.sums = [sum(self.sums[index : index + 2]) for index in range(0, len(self.sums), 2)]
        self.counts = [sum(self.counts[index : index + 2]) for index in range(0, len(self.counts), 2)]


@dataclass(frozen=True, kw_only=True)
class StepChart:
    """One chart below the loss.

    Attributes:
        column: the column of the step events, by its name in `series.STEP_FIELDS`.
        title: the text above the chart; `name` is shown in the hover text.
        empty: the placeholder before the first number.
        color: the line's index in the page's palette.
        hover_format, tick_format: in d3-format's syntax; empty: Plotly's default.
        axis_title: the text of the y axis, in which `{sample_unit}` stands for the unit of a sample.
        term: the glossary term that explains the title; empty: none.
        is_sparse: True if most steps do not have the number.
        limit_setting: a setting of the run that limits the number; if set, it is drawn as a line.
    """

    column: str
    title: str
    name: str
    color: int
    hover_format: str
    tick_format: str = ""
    axis_title: str = ""
    empty: str = "Appears with the first steps."
    term: str = ""
    is_sparse: bool = False
    limit_setting: str = ""


STEP_CHARTS = (
    StepChart(
        column="throughput",
        title="Throughput, all ranks together",
        name="throughput",
        term="throughput",
        color=2,
        hover_format=",.0f",
        axis_title="{sample_unit} per second",
    ),
    StepChart(
        column="learning_rate",
        title="Learning rate",
        name="learning rate",
        term="learning rate",
        color=0,
        hover_format=".4~g",
        tick_format=".3~g",
    ),
    StepChart(
        column="grad_norm",
        title="Gradient norm",
        name="gradient norm",
        term="gradient norm",
        color=3,
        hover_format=".3~g",
        empty="The gradient norm appears with the first steps, about ten times a second.",
        is_sparse=True,
        limit_setting="max_grad_norm",
    ),
)


def chart_columns(*, sparse: bool | None = None) -> tuple[str, ...]:
    """Return the drawn columns: all of them, only the sparse or only the dense ones."""
    return tuple(chart.column for chart in STEP_CHARTS if sparse is None or chart.is_sparse == sparse)


def describe_charts(sample_unit: str, config: Config) -> list[dict[str, Any]]:
    """Return the charts as the page draws them; `limit` is the number's limit in this run, or null."""
    return [
        {
            **asdict(chart),
            # The axis has space for "passages", but not for "passages of 64 characters".
            "axis_title": chart.axis_title.replace("{sample_unit}", sample_unit.partition(" of ")[0]),
            "limit": getattr(config, chart.limit_setting) if chart.limit_setting else None,
        }
        for chart in STEP_CHARTS
    ]
