"""The evaluations of a run and the best of them."""

from __future__ import annotations

from typing import Any

from trainers.contract import events


class Evaluations:
    """The evaluations of a run in order, and the best of them, by its main metric."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None

    @property
    def last(self) -> dict[str, Any]:
        """The newest one, or nothing."""
        return self.all[-1] if self.all else {}

    def add(self, event: dict[str, Any]) -> None:
        """Take in an `eval` event; one of an earlier step begins a new branch of the run."""
        if self.all and event["step"] <= self.all[-1]["step"]:
            self.cut_from(event["step"])
        self.all.append(event)
        self.best = _better(self.best, event)

    def cut_from(self, step: int) -> None:
        """Forget the evaluations at `step` and after it."""
        self.all = [event for event in self.all if event["step"] < step]
        self.best = None
        for event in self.all:
            self.best = _better(self.best, event)


def _better(best: dict[str, Any] | None, event: dict[str, Any]) -> dict[str, Any] | None:
    metrics = event["metrics"]
    name = events.primary_metric(metrics)
    if name is None or not events.is_better(name, metrics[name], best["value"] if best else None):
        return best
    return {"name": name, "value": metrics[name], "step": event["step"]}
