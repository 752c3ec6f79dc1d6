"""Tests of the parts of a step's time and of the memory that a rank holds."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from trainers.parallel.strategy import AllReduceTimes
from trainers.report import step_clock
from trainers.report.observer import Observer
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import Holdings, LiveProgress

CPU = torch.device("cpu")


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
        clock.data_fetched()
        clockwork.pass_time(0.01)
        clock.forward_done()
        clock.backward_done()
        clock.optimizer_done()
        clock.end_step()
        times = clock.newest()
        assert (times.all_reduce_time_s, times.wait_time_s, times.hidden_time_s) == pytest.approx(
            (spent_s, waited_s, hidden_s)
        )


NUM_WEIGHTS = 4 * 3 + 3


def test_of_adam_each_weight_has_a_gradient_and_two_numbers_more() -> None:
    network = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(network.parameters())
    clock, live_progress = StepClock(network, torch.device("cpu"), measures_wait=False), LiveProgress()
    observer = Observer(clock, live_progress, Holdings(network=network, optimizer=optimizer))
    observer.begin_step(is_reported=True)
    observer.data_fetched()
    loss = network(torch.ones(2, 4)).sum()
    observer.forward_done()
    loss.backward()
    observer.backward_done(is_last=True)
    optimizer.step()
    optimizer.zero_grad()
    observer.optimizer_done()
    assert live_progress.holdings is None
    observer.end_step(1)
    held = live_progress.holdings
    assert held is not None
    assert (held.parameter_bytes, held.gradient_bytes) == (4 * NUM_WEIGHTS, 4 * NUM_WEIGHTS)
    # Two moments per weight, and a step count for each of the two tensors.
    assert held.optimizer_bytes == 2 * 4 * NUM_WEIGHTS + 2 * 4
