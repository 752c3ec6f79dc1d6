"""Tests of the memory that a rank holds, measured on live tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainers.report.observer import Observer
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import Holdings, LiveProgress

pytestmark = pytest.mark.unit
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


def test_of_a_sharded_tensor_only_this_rank_s_part_counts() -> None:
    class Sharded(torch.Tensor):
        def to_local(self) -> torch.Tensor:
            return torch.zeros(5)

    network = nn.Linear(4, 3)
    network.weight.grad = Sharded(torch.zeros(3, 4))
    held = Holdings(network=network, optimizer=torch.optim.SGD(network.parameters()))
    held.backward_done()
    held.step_done()
    assert (held.gradient_bytes, held.optimizer_bytes) == (4 * 5, 0)
