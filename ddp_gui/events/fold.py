"""Which of a run's events count, and how long the run has been active; every reader of events uses it.

A run that is resumed from an older checkpoint goes back in `step`: later events replace those at that step
and after it. The time between a stop and a resume does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainers.contract import events

Steps = npt.NDArray[np.int64]
# Events of several threads may be written out of order by this much; more means that the clock was set back.
CLOCK_NOISE_S = 1.0

# Older ones would count only after a cut that goes back beyond all of these.
MOST_RECORDS = 1_000


class Part(NamedTuple):
    """A part of a batch in which the steps only go up.

    Attributes:
        begin, end: its place in the batch.
        cut_from: earlier entries at this step and after it are dropped; None: the part continues without a
        cut.
    """

    begin: int
    end: int
    cut_from: int | None


class Kept(NamedTuple):
    """What counts of the steps of a batch, once all parts of it are taken.

    Attributes:
        places: of the steps in the batch that no later step of it replaces.
        cut_from: earlier entries at this step and after it are dropped; None: none are.
        last_cut: where the steps go back for the last time; None where `cut_from` is.
    """

    places: Steps
    cut_from: int | None
    last_cut: int | None


@dataclass
class Fold:
    """Where a run stands, since when, and the best of its evaluations.

    Attributes:
        step: the newest step, or the last one before a cut.
        idle_s: between each stop and the resume after it; negative if the clock was set back.
        records: step and value of each evaluation that was the best so far, by `metric`: after a cut the
            last one left is the best of the rest.
    """

    began_unix_s: float | None = None
    newest_unix_s: float | None = None
    idle_s: float = 0.0
    step: int = 0
    metric: str | None = None
    records: list[tuple[int, float]] = field(default_factory=list)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation, by the run's main metric."""
        if not self.records:
            return None
        step, value = self.records[-1]
        return {"name": self.metric, "value": value, "step": step}

    @property
    def origin_unix_s(self) -> float:
        """The origin of the run's seconds, for its newest start."""
        return (self.began_unix_s or 0.0) + self.idle_s

    def active_s(self, now: float | None = None) -> float:
        """Return the seconds the run has been active, until now or its newest event."""
        if self.newest_unix_s is None:
            return 0.0
        until = self.newest_unix_s if now is None else max(now, self.newest_unix_s)
        return until - self.origin_unix_s

    def take_time(self, time_unix_s: float, *, is_start: bool = False) -> None:
        """Add the time of an event; some may be skipped, but not a start and the event before it."""
        if self.began_unix_s is None or self.newest_unix_s is None:
            self.began_unix_s = time_unix_s
        elif is_start or time_unix_s < self.newest_unix_s - CLOCK_NOISE_S:
            self.idle_s += time_unix_s - self.newest_unix_s
        self.newest_unix_s = time_unix_s

    def take_times(self, times_unix_s: Sequence[float]) -> npt.NDArray[np.float64]:
        """Add the times of successive events of one start; return the active seconds at each.

        Where the clock was set back, the origin moves back too, so that the run's own time never decreases.
        A clock that was set forward cannot be distinguished from a pause.
        """
        times = np.asarray(times_unix_s, np.float64)
        if self.began_unix_s is None or self.newest_unix_s is None:
            self.began_unix_s = self.newest_unix_s = float(times[0])
        changes = np.diff(times, prepend=self.newest_unix_s)
        set_back = np.cumsum(np.where(changes < -CLOCK_NOISE_S, changes, 0.0))
        active_s: npt.NDArray[np.float64] = times - (self.origin_unix_s + set_back)
        self.idle_s += float(set_back[-1])
        self.newest_unix_s = float(times[-1])
        return active_s

    def take_steps(self, steps: Steps | Sequence[int]) -> Iterator[Part]:
        """Add the steps of a batch of events part by part; see `parts_of`."""
        for part in parts_of(steps, self.step):
            if part.cut_from is not None:
                self.cut_from(part.cut_from)
            if part.end > part.begin:
                self.step = int(steps[part.end - 1])
            yield part

    def take_batch(self, steps: Steps | Sequence[int]) -> Kept:
        """Add the steps of a batch of events at once, however often they go back."""
        steps = np.asarray(steps, np.int64)
        if not len(steps):
            return Kept(steps, None, None)
        cuts = np.flatnonzero(np.diff(steps, prepend=self.step) <= 0)
        if not len(cuts):
            self.step = int(steps[-1])
            return Kept(np.arange(len(steps)), None, None)
        cut_from = int(steps[cuts].min())
        self.cut_from(cut_from)
        self.step = int(steps[-1])
        lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
        is_kept = np.append(steps[:-1] < lowest_after[1:], True)
        return Kept(np.flatnonzero(is_kept), cut_from, int(cuts[-1]))

    def take_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add an evaluation; it replaces those of its step and later ones."""
        name = events.primary_metric(metrics)
        if name is None:
            return
        if name != self.metric:
            self.metric, self.records = name, []
        self._forget_records(step)
        value = metrics[name]
        if value is not None and events.is_better(name, value, self.records[-1][1] if self.records else None):
            self.records.append((step, value))
            del self.records[:-MOST_RECORDS]

    def cut_from(self, step: int) -> None:
        """Drop this step and everything after it."""
        self.step = step - 1
        self._forget_records(step)

    def _forget_records(self, step: int) -> None:
        while self.records and self.records[-1][0] >= step:
            self.records.pop()


def parts_of(steps: Steps | Sequence[int], newest: int) -> list[Part]:
    """Split the steps of a batch of events, in order, where they go back.

    Args:
        newest: the last step before the batch.

    Returns: the parts; the first one, which may be empty, continues, each other one cuts.
    """
    steps = np.asarray(steps, np.int64)
    backwards = np.flatnonzero(np.diff(steps, prepend=newest) <= 0).tolist()
    borders = pairwise([0, *backwards, len(steps)])
    return [
        Part(begin, end, int(steps[begin]) if number else None) for number, (begin, end) in enumerate(borders)
    ]


def is_start(event: events.Event) -> bool:
    """Tell whether this event marks a start or a resume of the run."""
    return bool(event["kind"] == "state" and event["state"] == "starting")
