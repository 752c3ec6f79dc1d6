"""Growing columns of numbers, and a decimated view of a range of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler, NaNMinMaxLTTBDownsampler

MAX_POINTS = 2_000
# A zoom to slightly more points than that shows each of them.
MAX_POINTS_OF_A_RANGE = 2_500
SMALLEST_CAPACITY = 16
GROWTH = 1.5
SHOWN_DIGITS = 5
SHORTEST_AXIS = 1e-6

Axis = Literal["step", "time"]
Numbers = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
Trace = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ChartView:
    """How a viewer has set the charts of steps.

    Attributes:
        axis: the x axis: the optimizer step, or the seconds since the start.
        smoothing: the span, in steps, of the exponential moving averages; 0: none.
        smoothed: the columns with a moving average, of the steps themselves and not of the points drawn.
        nodes: of a run on several machines, those whose ranks are shown one by one; None: all.
    """

    axis: Axis = "step"
    smoothing: int = 0
    smoothed: tuple[str, ...] = ("loss",)
    nodes: frozenset[int] | None = None

    def shows(self, rank: int, ranks_a_node: int) -> bool:
        """Tell whether a rank is shown by itself."""
        return self.nodes is None or rank // ranks_a_node in self.nodes


PLAIN_VIEW = ChartView()


class Table:
    """Rows of numbers with their step, time and event number; they grow in place.

    Values are stored in single precision: seven digits, of which a screen shows five.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = {name: row for row, name in enumerate(fields)}
        self.length = 0
        self._seq = np.empty(SMALLEST_CAPACITY, np.int64)
        self._step = np.empty(SMALLEST_CAPACITY, np.int64)
        self._seconds = np.empty(SMALLEST_CAPACITY, np.float64)
        self._values = np.empty((len(fields), SMALLEST_CAPACITY), np.float32)

    def extend(
        self, seq: npt.ArrayLike, step: npt.ArrayLike, seconds: npt.ArrayLike, values: npt.ArrayLike
    ) -> None:
        """Append rows; `values` has one row a field."""
        seq = np.asarray(seq, np.int64)
        end = self.length + len(seq)
        self._make_room(end)
        place = slice(self.length, end)
        self._seq[place], self._step[place], self._seconds[place] = seq, step, seconds
        self._values[:, place] = values
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
        """Return the positions of the rows of a range, one more on each side to draw to its edges."""
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

    def smoothed(self, name: str, span: int, first: int, last: int) -> Numbers:
        """Return the exponential moving average of a slice's rows; where a row has no number there is none.

        What lies further back than eight spans has a weight below a millionth, and is not read.
        """
        start = max(0, first - 8 * span)
        values = self.column(name)[start:last].astype(np.float64)
        averages = moving_average(values, span)
        # A loss that has become NaN does not go on as a line.
        averages[~np.isfinite(values)] = np.nan
        return averages[first - start :]

    def _make_room(self, wanted: int) -> None:
        capacity = len(self._seq)
        if wanted <= capacity:
            return
        larger = max(wanted, int(capacity * GROWTH))
        self._seq = _enlarged(self._seq, self.length, larger)
        self._step = _enlarged(self._step, self.length, larger)
        self._seconds = _enlarged(self._seconds, self.length, larger)
        values = np.empty((len(self.fields), larger), np.float32)
        values[:, : self.length] = self._values[:, : self.length]
        self._values = values


def moving_average(values: Numbers, span: int) -> Numbers:
    """Return the exponential moving average without the bias of its beginning; NaN before the first number.

    Args:
        span: the newest value has the weight 2 / (span + 1), as in pandas.
    """
    decay = 1.0 - 2.0 / (span + 1)
    # Summed in pieces, in which the weights stay far within what a double holds.
    piece = max(1, int(300.0 / -np.log(decay)))
    averages = np.empty(len(values))
    total = weight = 0.0
    for begin in range(0, len(values), piece):
        part = values[begin : begin + piece]
        is_there = np.isfinite(part)
        powers = decay ** np.arange(1, len(part) + 1)
        totals = (total + np.cumsum(np.where(is_there, part, 0.0) / powers)) * powers
        weights = (weight + np.cumsum(is_there / powers)) * powers
        with np.errstate(invalid="ignore"):
            averages[begin : begin + len(part)] = totals / weights
        total, weight = float(totals[-1]), float(weights[-1])
    return averages


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
    """True if an axis is long enough for its precision: the library panics (no Exception) where it is not."""
    first, last = float(x[0]), float(x[-1])
    precision = np.finfo(np.float64).eps * max(abs(first), abs(last), SHORTEST_AXIS)
    # The library divides into four times as many ranges; the rest is a margin.
    return bool(math.isfinite(last - first) and last - first > 128 * num_ranges * precision)


def shown(values: npt.NDArray[np.floating]) -> Numbers:
    """Round to a few significant digits: what a screen can show, in few bytes."""
    numbers = values.astype(np.float64)
    is_plain = np.isfinite(numbers) & (numbers != 0)
    digits = SHOWN_DIGITS - 1 - np.floor(np.log10(np.abs(numbers[is_plain])))
    # Powers of ten above 22 are not exact; values that small keep all digits.
    scale = 10.0 ** np.clip(digits, -300, 22)
    numbers[is_plain] = np.round(numbers[is_plain] * scale) / scale
    numbers[np.isinf(numbers)] = np.nan
    return numbers


def shown_x(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Steps as they are; seconds to the millisecond."""
    rounded: npt.NDArray[Any] = np.round(x, 3)
    return rounded


Kind = TypeVar("Kind", bound=np.generic)


def _enlarged(old: npt.NDArray[Kind], length: int, capacity: int) -> npt.NDArray[Kind]:
    new = np.empty(capacity, old.dtype)
    new[:length] = old[:length]
    return new
