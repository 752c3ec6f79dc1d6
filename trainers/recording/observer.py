"""The observer that the training loop tells while steps are recorded: and its notes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainers.recording.moments import Moments
from trainers.report.observer import NullObserver


@dataclass(kw_only=True)
class NotedStep:
    """A step as it was noted: the moments at which its parts ended; `step` is 0 until it is done."""

    began: Any
    marks: list[tuple[str, Any]] = field(default_factory=list)
    step: int = 0


class RecordingObserver(NullObserver):
    """Passes all on to the usual observer, and keeps the moments of `num_steps` steps.

    Args:
        divides_passes: backward begins when forward is over.
        on_full: called at the end of the last step.

    Attributes:
        steps: those that are done.
    """

    is_recording = True

    def __init__(
        self,
        usual: NullObserver,
        moments: Moments,
        *,
        num_steps: int,
        divides_passes: bool,
        on_full: Callable[[str | None], None],
    ) -> None:
        self._usual = usual
        self._now = moments.now
        self._num_steps = num_steps
        self._divides_passes = divides_passes
        self._on_full = on_full
        self._under_way: NotedStep | None = None
        self.steps: list[NotedStep] = []

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        self._usual.begin_step(is_reported=is_reported, is_first_of_epoch=is_first_of_epoch)
        self._under_way = NotedStep(began=self._now())

    def data_fetched(self) -> None:
        self._mark("data")
        self._usual.data_fetched()

    def forward_done(self) -> None:
        if self._divides_passes:
            self._mark("forward")
        self._usual.forward_done()

    def backward_done(self, *, is_last: bool) -> None:
        self._mark("backward" if self._divides_passes else "both")
        self._usual.backward_done(is_last=is_last)

    def optimizer_done(self) -> None:
        self._mark("optimizer")
        self._usual.optimizer_done()

    def end_step(self, step: int) -> None:
        self._mark("other")
        self._usual.end_step(step)
        self.step_time_s, self.data_time_s = self._usual.step_time_s, self._usual.data_time_s
        if self._under_way is not None:
            self._under_way.step = step
            self.steps.append(self._under_way)
            self._under_way = None
        if len(self.steps) >= self._num_steps:
            self._on_full(None)

    def standing_still(self) -> contextlib.AbstractContextManager[None]:
        return self._usual.standing_still()

    def go_on_within_step(self) -> None:
        self._mark("other")
        self._usual.go_on_within_step()

    def end_recording(self, why: str) -> None:
        self._on_full(why)

    def _mark(self, part: str) -> None:
        if self._under_way is not None:
            self._under_way.marks.append((part, self._now()))
