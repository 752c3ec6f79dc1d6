"""Tests of the step clock: the sum of the parts, and times that are not measured."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest
import torch
from torch import nn

from trainers.parallel.strategy import AllReduceTimes
from trainers.report import step_clock
from trainers.report.step_clock import StepClock

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
PART_S = 0.004


class Clockwork:
    """A simulated clock that advances only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(step_clock._HostTime, "now", lambda _: self.now_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    return Clockwork(monkeypatch)


def test_parts_of_several_batches_are_added_up_and_the_rest_is_what_is_left(clockwork: Clockwork) -> None:
    network = nn.Linear(2, 1)
    clock = StepClock(network, CPU, measures_wait=True)
    clock.begin_step(is_reported=False)
    for _ in range(2):
        clockwork.pass_time(0.1)
        clock.data_fetched()
        clockwork.pass_time(0.2)
        loss = network(torch.ones(1, 2)).sum()
        clock.forward_done()
        clockwork.pass_time(0.3)
        loss.backward()  # the hook records the end of this rank's own gradients
        clockwork.pass_time(0.05)
        clock.backward_done()
    clockwork.pass_time(0.4)
    clock.optimizer_done()
    clockwork.pass_time(0.01)
    clock.end_step()
    *times, all_reduce, hidden = clock.newest()
    assert times == pytest.approx([1.71, 0.2, 0.4, 0.7, 0.4, 0.05])
    assert (all_reduce, hidden) == (None, None), "this network has nobody to average with"
    assert (clock.step_time_s, clock.data_time_s) == pytest.approx((1.71, 0.2))


def test_where_the_all_reduce_is_timed_each_step_has_its_own_part_of_it(clockwork: Clockwork) -> None:
    so_far = AllReduceTimes(spent_s=5.0, waited_s=2.0, hidden_s=1.0)
    clock = StepClock(nn.Linear(2, 1), CPU, measures_wait=True, all_reduce_times=lambda: so_far)
    for spent_s, waited_s, hidden_s in ((0.3, 0.2, 0.05), (0.6, 0.1, 0.0)):
        so_far = AllReduceTimes(
            spent_s=so_far.spent_s + spent_s,
            waited_s=so_far.waited_s + waited_s,
            hidden_s=so_far.hidden_s + hidden_s,
        )
        clock.begin_step(is_reported=False)
        finish_step(clock, clockwork, begins=False)
        times = clock.newest()
        assert (times.all_reduce_time_s, times.wait_time_s, times.hidden_time_s) == pytest.approx(
            (spent_s, waited_s, hidden_s)
        )


def finish_step(clock: StepClock, clockwork: Clockwork, *, begins: bool = True, divides: bool = True) -> None:
    """Run a step of one batch without gradients, so that no waiting time is measured."""
    if begins:
        clock.begin_step(is_reported=True)
    clock.data_fetched()
    clockwork.pass_time(PART_S)
    if divides:
        clock.forward_done()
    clockwork.pass_time(PART_S)
    clock.backward_done()
    clockwork.pass_time(PART_S)
    clock.optimizer_done()
    clock.end_step()


class FakeEvent:
    """A CUDA event of a GPU that is always 5 ms behind its host, and whose clock runs twice as fast."""

    clockwork: Clockwork
    num_made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.num_made += 1

    def record(self) -> None:
        self.at_ms = 1000 * (2 * self.clockwork.now_s) + 5

    def query(self) -> bool:
        return self.at_ms <= 1000 * 2 * self.clockwork.now_s

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.at_ms - self.at_ms


def test_on_a_gpu_only_reported_steps_are_measured_and_by_the_gpus_own_time(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeEvent.clockwork, FakeEvent.num_made = clockwork, 0
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = StepClock(nn.Linear(2, 1), GPU, measures_wait=True)
    clock.begin_step(is_reported=False)
    finish_step(clock, clockwork, begins=False)
    assert set(clock.newest()) == {None} and FakeEvent.num_made == 0
    assert clock.step_time_s == pytest.approx(3 * PART_S), "the host's own time is known of every step"
    finish_step(clock, clockwork)
    assert set(clock.newest()) == {None}, "the GPU is still behind, and nobody waits for it"
    clock.begin_step(is_reported=False)
    finish_step(clock, clockwork, begins=False)
    measured = clock.newest()
    assert measured.forward_time_s == measured.optimizer_time_s == pytest.approx(2 * PART_S)
    assert measured.step_time_s == pytest.approx(6 * PART_S)
    num_events = FakeEvent.num_made
    clock.begin_step(is_reported=False)
    finish_step(clock, clockwork, begins=False)
    assert clock.newest() is measured, "the newest step that was measured"
    for _ in range(4):
        finish_step(clock, clockwork)
    assert FakeEvent.num_made == 2 * num_events, "events of two steps serve again"
    assert clock.newest() is not measured and clock.newest() == pytest.approx(measured)


class EventOfALateGpu:
    """A simulated CUDA event, which the GPU reaches when the test sets `is_reached`."""

    made: ClassVar[list[EventOfALateGpu]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.is_reached = False

    def record(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached


def test_how_far_a_gpu_is_with_gradients_is_known_without_waiting_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", EventOfALateGpu)
    monkeypatch.setattr(EventOfALateGpu, "made", [])
    clock = StepClock(network := nn.Linear(2, 1), GPU, measures_wait=True)
    assert clock.gradients_done() is None
    for _ in range(3):
        clock.begin_step(is_reported=False)
        network(torch.ones(1, 2)).sum().backward()
    assert clock.gradients_done() == 0
    first, second, third = EventOfALateGpu.made
    first.is_reached = third.is_reached = True
    assert clock.gradients_done() == 1, "one after the other"
    second.is_reached = True
    assert clock.gradients_done() == 3
    network(torch.ones(1, 2)).sum().backward()
    assert clock.gradients_done() == 3 and len(EventOfALateGpu.made) == 3, "events serve again"
    assert StepClock(network, CPU, measures_wait=True).gradients_done() is None
