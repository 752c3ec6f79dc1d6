"""Tests of the learning rate at every step: warm-up, schedules, linear scaling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from trainers.checkpoint.snapshot import Progress
from trainers.contract.config import Config, schedule
from trainers.optimisation.optimizers import LearningRate

NUM_STEPS = 100


def factors(**values: Any) -> list[float]:
    config = Config(**values)
    return [
        schedule.factor_at(config, step, num_steps=NUM_STEPS, steps_per_epoch=10)
        for step in range(1, NUM_STEPS + 1)
    ]


@pytest.mark.parametrize("lr_schedule", ["cosine", "linear"])
def test_rate_falls_from_full_to_nothing_over_the_steps_after_the_warm_up(lr_schedule: str) -> None:
    found = factors(lr_schedule=lr_schedule, warmup_steps=10)
    assert found[9] == found[10] == 1.0
    assert all(later < earlier for earlier, later in pairwise(found[10:]))
    assert found[-1] == pytest.approx(0.0, abs=1e-12)
    middle = 10 + 89 // 2
    assert found[middle] == pytest.approx(0.5, abs=0.02)


def theirs(name: str) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    if name == "cosine":
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS - 1)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    return optimizer, one_cycle(optimizer, max_lr=1.0, total_steps=NUM_STEPS, cycle_momentum=False)


@pytest.mark.parametrize("name", ["cosine", "one_cycle"])
def test_schedule_is_that_of_torch(name: str) -> None:
    optimizer, schedule_of_torch = theirs(name)
    for step, ours in enumerate(factors(lr_schedule=name), start=1):
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        if step < NUM_STEPS:
            schedule_of_torch.step()


def test_step_drops_every_so_many_epochs() -> None:
    found = factors(lr_schedule="step", lr_step_epochs=3, lr_gamma=0.5)
    assert found[:30] == [1.0] * 30 and found[30:60] == [0.5] * 30 and found[90:] == [0.125] * 10


def test_optimizer_gets_the_rate_of_the_step_and_set_lr_replaces_the_peak() -> None:
    config = Config(learning_rate=0.2, warmup_steps=4, batch_size=10, num_epochs=1)
    rate = LearningRate(config, num_replicas=2, num_train=200)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight]}], lr=9.0)
    assert rate.apply(optimizer, Progress(step=0)) == pytest.approx(0.05) == optimizer.param_groups[0]["lr"]
    assert rate.apply(optimizer, Progress(step=3, samples_in_epoch=60)) == pytest.approx(0.2)
    changed = Progress(step=1, samples_in_epoch=20, learning_rate=1.0)
    assert rate.apply(optimizer, changed) == pytest.approx(0.5), "the schedule goes on from the new peak"
