"""Whether a run's replicas are identical: its `fingerprints` events, folded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.contract.events import Event

MAX_KEPT = 4_000
MAX_RANKS = 64
NUM_NEWEST = 24
MAX_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison of all ranks' weights; the fields are those of the event."""

    seq: int
    step: int
    hashes: tuple[str, ...]
    distances: tuple[float | None, ...]

    @property
    def is_identical(self) -> bool:
        return len(set(self.hashes)) == 1


class Fingerprints:
    """The comparisons of a run in order of their steps; of a very long run only some of the older ones."""

    def __init__(self) -> None:
        self._all: list[Comparison] = []
        self._started_at_seq = 0
        self.newest_seq = -1

    def add(self, event: Event) -> None:
        """Add a `fingerprints` event; it replaces those of its step and later ones."""
        found = Comparison(
            seq=event["seq"],
            step=event["step"],
            hashes=tuple(event["hashes"][:MAX_RANKS]),
            distances=tuple(event["distances"][:MAX_RANKS]),
        )
        while self._all and self._all[-1].step >= found.step:
            self._all.pop()
        self._all.append(found)
        if len(self._all) > MAX_KEPT:
            half = len(self._all) // 2
            self._all = self._all[:half:2] + self._all[half:]
        self.newest_seq = found.seq

    def note_start(self, seq: int) -> None:
        """Note that the run starts, or goes on, with the event of this number."""
        self._started_at_seq = seq

    def cut_from(self, step: int) -> None:
        """Drop what an earlier start has said of `step` and later ones."""
        # Both grow: what is dropped is one part of the list.
        first = bisect_left(self._all, step, key=lambda item: item.step)
        end = bisect_right(self._all, self._started_at_seq, key=lambda item: item.seq)
        del self._all[first : max(first, end)]

    def shown(self) -> dict[str, Any] | None:
        """Return what the page shows; None while nothing has been compared."""
        if not self._all:
            return None
        newest = self._all[-1]
        differing = len(self._all)
        while differing > 0 and not self._all[differing - 1].is_identical:
            differing -= 1
        return {
            "step": newest.step,
            "num_ranks": len(newest.hashes),
            "is_identical": newest.is_identical,
            "differ_since": None if newest.is_identical else self._all[differing].step,
            "identical_until": self._all[differing - 1].step if differing else None,
            "newest": [
                {"step": item.step, "hashes": item.hashes, "distances": item.distances}
                for item in self._all[-NUM_NEWEST:]
            ],
            "curve": self._curve(),
        }

    def _curve(self) -> dict[str, Any] | None:
        """Return each rank's distance over the steps, thinned; None where replicas were always identical."""
        if all(item.is_identical for item in self._all):
            return None
        places = np.unique(np.linspace(0, len(self._all) - 1, MAX_POINTS).round().astype(int)).tolist()
        chosen = [self._all[place] for place in places]
        num_ranks = min(len(item.distances) for item in chosen)
        return {
            "steps": [item.step for item in chosen],
            "distances": [[item.distances[rank] for item in chosen] for rank in range(num_ranks)],
        }
