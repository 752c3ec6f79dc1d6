"""The evaluations of a run and the best of them."""

from __future__ import annotations

from typing import Any

from ddp_gui.events.fold import Fold


class Evaluations:
    """The evaluations of a run in order, and the best of them, by its main metric."""

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
        self.all.append(event)
        self._fold.take_evaluation(event["step"], event["metrics"])

    def cut_from(self, step: int) -> None:
        """Drop the evaluations at `step` and after it."""
        while self.all and self.all[-1]["step"] >= step:
            self.all.pop()
        self._fold.cut_from(step)
