"""Where an axis begins and ends, and what is written at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddp_gui.learn.report.curves import Numbers

_MARGIN = 0.04
_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values; of a logarithmic axis, of their logarithms to the base 10."""

    low: float
    high: float
    is_logarithmic: bool = False
    is_share: bool = False

    def scaled(self, values: Numbers) -> Numbers:
        """Return what is drawn for some values; NaN where a logarithm has none."""
        if not self.is_logarithmic:
            return values
        with np.errstate(invalid="ignore", divide="ignore"):
            logarithms = np.log10(values)
        return np.where(np.isfinite(logarithms), logarithms, np.nan)

    def share_of(self, value: float) -> float:
        """Return where a value, already scaled, is: 0 is the beginning, 1 the end."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return some places, already scaled, with what is written there."""
        if self.is_logarithmic:
            return self._powers(most)
        step = _step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [
            (index * step, _label(index * step, step, is_share=self.is_share))
            for index in range(first, last + 1)
        ]

    def _powers(self, most: int) -> list[tuple[float, str]]:
        factors = (1, 2, 5) if self.high - self.low < most / 3 else (1,)
        every = max(1, math.ceil((self.high - self.low) / most))
        found = []
        for power in range(math.floor(self.low), math.ceil(self.high) + 1, every):
            for factor in factors:
                place = power + math.log10(factor)
                if self.low <= place <= self.high:
                    found.append((place, f"{factor * 10.0**power:.6g}"))
        return found


def along(values: Sequence[Numbers]) -> Axis:
    """Return the axis that curves are drawn over: from 0, or from where they begin if that is below."""
    ends = [(float(each[0]), float(each[-1])) for each in values if len(each)]
    low, high = min([0.0, *(end[0] for end in ends)]), max([0.0, *(end[1] for end in ends)])
    return Axis(low=low, high=high if high > low else low + 1.0)


def beside(
    values: Sequence[Numbers],
    *,
    is_logarithmic: bool = False,
    is_share: bool = False,
    from_zero: bool = False,
) -> Axis:
    """Return the axis of the curves' own values, with a little room at both ends."""
    plain = Axis(low=0, high=1, is_logarithmic=is_logarithmic)
    scaled = [plain.scaled(each) for each in values]
    there = [each[np.isfinite(each)] for each in scaled]
    ends = [(float(each.min()), float(each.max())) for each in there if len(each)]
    low, high = (min(end[0] for end in ends), max(end[1] for end in ends)) if ends else (0.0, 1.0)
    is_from_zero = from_zero and not is_logarithmic and low >= 0
    low = 0.0 if is_from_zero else low
    room = (high - low) * _MARGIN or max(abs(high), 1.0) * _MARGIN
    return Axis(
        low=low if is_from_zero else low - room,
        high=high + room,
        is_logarithmic=is_logarithmic,
        is_share=is_share,
    )


def _step(wanted: float) -> float:
    """Return the next larger of 1, 2, 5, 10, 20, …"""
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in _STEPS if step * power >= wanted * (1 - 1e-9))


def _label(value: float, step: float, *, is_share: bool) -> str:
    if is_share:
        return f"{value * 100:.{max(0, -math.floor(math.log10(step * 100) + 1e-9))}f}%"
    if max(abs(value), step) >= 1e9 or step < 1e-6:
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
