"""The evaluations of a run and the best of them."""

from __future__ import annotations

from typing import Any

from ddp_gui.events.fold import Fold
from trainers.contract.events import primary_metric

MAX_KEPT = 10_000
MAX_OLDER_METRICS = 8


class Evaluations:
    """The evaluations of a run in order, and the best of them, by its main metric.

    Of a very long run only some of the older ones are kept.
    """

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._fold = Fold()

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation, by the run's main metric."""
        return self._fold.best

    @property
    def last(self) -> dict[str, Any]:
        """The newest evaluation, or None."""
        return self.all[-1] if self.all else {}

    def add(self, event: dict[str, Any]) -> None:
        """Add an `eval` event; it replaces those of its step and later ones."""
        self.cut_from(event["step"])
        if self.all:
            self.all[-1] = _of_an_older_one(self.all[-1])
        self.all.append(event)
        if len(self.all) > MAX_KEPT:
            half = len(self.all) // 2
            self.all = self.all[:half:2] + self.all[half:]
        self._fold.take_evaluation(event["step"], event["metrics"])

    def cut_from(self, step: int) -> None:
        """Drop the evaluations at `step` and after it."""
        while self.all and self.all[-1]["step"] >= step:
            self.all.pop()
        self._fold.cut_from(step)


def _of_an_older_one(event: dict[str, Any]) -> dict[str, Any]:
    """Return what is still needed of an evaluation after the next one: loss and metrics, if they are few."""
    metrics = event["metrics"]
    main = primary_metric(metrics)
    if len(metrics) > MAX_OLDER_METRICS:
        metrics = {} if main is None else {main: metrics[main]}
    return {**event, "confusion": None, "metrics": metrics}
