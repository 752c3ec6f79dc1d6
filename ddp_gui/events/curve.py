"""The sparkline of a run's training loss: some forty means, however long the run is."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_POINTS = 60
# One character per point: from the lowest loss to the highest, and one for a bin without data.
LEVELS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
NOTHING = "."

Steps = npt.NDArray[np.int64]
Losses = npt.NDArray[np.float64]


@dataclass
class Curve:
    """Means over bins of equally many steps; the bins are doubled in size when there would be too many."""

    steps_per_piece: int = 1
    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, steps: Steps, losses: Losses) -> None:
        """Add steps (counted from 1) with their losses; those without a loss are skipped."""
        is_number = np.isfinite(losses)
        steps, losses = steps[is_number], losses[is_number]
        if not len(steps):
            return
        while (int(steps.max()) - 1) // self.steps_per_piece >= MAX_POINTS:
            self._double()
        piece = (steps - 1) // self.steps_per_piece
        sums, counts = np.bincount(piece, losses), np.bincount(piece)
        missing = len(sums) - len(self.sums)
        self.sums += [0.0] * missing
        self.counts += [0] * missing
        for index in np.flatnonzero(counts).tolist():
            self.sums[index] += float(sums[index])
            self.counts[index] += int(counts[index])

    def cut_from(self, step: int) -> None:
        """Drop the bins from that of `step` on."""
        first = (step - 1) // self.steps_per_piece
        del self.sums[first:], self.counts[first:]

    def drawn(self) -> dict[str, Any] | None:
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
