"""Follows one rank's training loop: the times of a step, the heartbeat, what the sampler reads of both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from trainers.engines.heartbeats import beats
from trainers.engines.heartbeats.heartbeat_board import COMPUTING, FETCHING, STEPPING
from trainers.parallel.strategy import Strategy
from trainers.report.holdings import Holdings
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import Pulse


class NullObserver:
    """Notes nothing: the bare loop, as benchmarks compare it with and tests call it.

    Attributes:
        step_time_s, data_time_s: what the host spent on the last step, and in it on fetching data.
        is_recording: the steps are being recorded; then another observer is in the usual one's place.
    """

    step_time_s = 0.0
    data_time_s = 0.0
    is_recording = False

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        """Note that the first batch of a step is fetched now.

        Args:
            is_reported: the step ends with a report.
            is_first_of_epoch: what was done since the last step (evaluations, checkpoints) belongs to none.
        """

    def data_fetched(self) -> None:
        """Note that a batch is there."""

    def forward_done(self) -> None:
        """Note that the loss is there."""

    def backward_done(self, *, is_last: bool) -> None:
        """Note the end of backward; after the last micro-batch of a step the optimizer follows."""

    def optimizer_done(self) -> None:
        """Note that the weights have moved."""

    def end_step(self, step: int) -> None:
        """Note that this step is done."""

    def standing_still(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of what is no part of any step; one within another is counted once."""
        return contextlib.nullcontext()

    def go_on_within_step(self) -> None:
        """Note that the next micro-batch is fetched from now on: what was done meanwhile is no fetching."""

    def end_recording(self, why: str) -> None:
        """End a recording that is under way with the steps it has; every rank must call it."""


class Observer(NullObserver):
    """Keeps the clock, beats to the supervisor, and leaves the newest step where the sampler finds it.

    Attributes:
        pulse: what the sampler reads.
    """

    def __init__(self, clock: StepClock, pulse: Pulse, holdings: Holdings | None = None) -> None:
        self._clock = clock
        self.pulse = pulse
        # Counted in the first step, then let go.
        self._holdings = holdings
        pulse.gradients_done = clock.gradients_done
        self._stood_still_s = 0.0

    @classmethod
    def of(cls, strategy: Strategy, optimizer: torch.optim.Optimizer, pulse: Pulse) -> Observer:
        """Return the observer of a wrapped network's training."""
        clock = StepClock(
            strategy.network,
            strategy.world.device,
            measures_wait=strategy.measures_wait,
            is_alone=strategy.world.world_size == 1,
            divides_passes=strategy.divides_passes,
            all_reduce_times=lambda: strategy.all_reduce_times,
        )
        return cls(clock, pulse, Holdings(network=strategy.network, optimizer=optimizer))

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        beats.beat(FETCHING)
        stood_still_s, self._stood_still_s = self._stood_still_s, 0.0
        self._clock.begin_step(
            is_reported=is_reported, stood_still_s=None if is_first_of_epoch else stood_still_s
        )

    def data_fetched(self) -> None:
        self._clock.data_fetched()
        beats.beat(COMPUTING)

    def forward_done(self) -> None:
        self._clock.forward_done()
        if self._holdings is not None:
            self._holdings.forward_done()

    def backward_done(self, *, is_last: bool) -> None:
        self._clock.backward_done()
        if self._holdings is not None:
            self._holdings.backward_done()
        beats.beat(STEPPING if is_last else FETCHING)

    def optimizer_done(self) -> None:
        self._clock.optimizer_done()

    def end_step(self, step: int) -> None:
        if self._holdings is not None:
            self._holdings.step_done()
            self.pulse.holdings, self._holdings = self._holdings, None
            self.pulse.news.set()  # a short run is over before the next second
        self._clock.end_step()
        self.step_time_s, self.data_time_s = self._clock.step_time_s, self._clock.data_time_s
        self.pulse.beat(step, self._clock.newest)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        before_s, since = self._stood_still_s, time.perf_counter()
        try:
            yield
        finally:
            self._stood_still_s = before_s + time.perf_counter() - since

    def go_on_within_step(self) -> None:
        stood_still_s, self._stood_still_s = self._stood_still_s, 0.0
        self._clock.leave_out(stood_still_s)
