"""Tests of deliberate mistakes: each breaks one part of training and no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.trainers.report.test_step_meter import Notebook, TwinWorld
from trainers import registry
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress
from trainers.contract.config import Config, ConfigError
from trainers.data.micro_batches import ShardedBatches
from trainers.evaluation import Evaluator
from trainers.optimisation.optimizers import LearningRate
from trainers.report.step_meter import StepMeter
from trainers.strategies.ddp import Ddp

PARTS: tuple[type, ...] = (ShardedBatches, LearningRate, StepMeter, Evaluator, Checkpointer, Ddp)
# The lessons refer to these names.
NAMES = {
    "no_sampler": ShardedBatches,
    "no_set_epoch": ShardedBatches,
    "no_gradient_averaging": Ddp,
    "sum_instead_of_mean": Ddp,
    "scheduler_per_rank": LearningRate,
    "rank0_loss_only": StepMeter,
    "rank0_metrics": Evaluator,
    "padded_validation": Evaluator,
    "rank0_validates_alone": Evaluator,
    "rank0_saves_alone": Checkpointer,
    "uneven_batches": ShardedBatches,
}


@pytest.fixture(autouse=True, scope="module")
def _discovered() -> None:
    assert registry.discover_all() == []


def broken(name: str, **values: Any) -> Config:
    return Config(mistake=name, **values)


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_replaces_one_part_and_no_other(name: str) -> None:
    registry.check_mistake(broken(name, lr_schedule="cosine"))
    replaced = {usual for usual in PARTS if registry.part(broken(name), usual) is not usual}
    assert replaced == {NAMES[name]}


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"mistake": "no_samplr"}, "mistake", "no_sampler"),
        ({"mistake": "no_sampler", "strategy": "zero1"}, "strategy", "no_sampler is a common mistake"),
        ({"mistake": "no_sampler", "nproc_per_node": 1}, "nproc_per_node", "at least 2"),
        ({"mistake": "scheduler_per_rank"}, "lr_schedule", "changes the learning rate"),
        ({"mistake": "no_gradient_averaging", "static_graph": True}, "static_graph", "false"),
    ],
)
def test_a_mistake_that_cannot_be_made_is_refused_in_words(
    values: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        registry.check_mistake(Config(**values))
    (problem,) = refused.value.problems
    assert problem.field == field and words in problem.allowed


def samples(name: str, replica: int, epoch: int) -> list[int]:
    kind = registry.part(broken(name) if name else Config(), ShardedBatches)
    batches = kind(20, 3, seed=1, replica=replica, num_replicas=2)
    batches.set_epoch(epoch)
    return [index for micro in batches.starting_at(0) for index in micro.indices.tolist()]


def test_samples_without_a_sampler_and_without_set_epoch() -> None:
    for replica in (0, 1):
        assert samples("no_set_epoch", replica, 5) == samples("", replica, 0)
        assert samples("", replica, 5) != samples("", replica, 0)
    first, second = samples("no_sampler", 0, 1), samples("no_sampler", 1, 1)
    assert first == second and sorted(first) == list(range(20))
    assert samples("no_sampler", 0, 2) != first, "it shuffles anew all the same"
    assert sorted(samples("", 0, 1) + samples("", 1, 1)) == list(range(20))


def test_a_schedule_that_steps_once_a_rank_is_that_many_times_too_fast() -> None:
    config = broken("scheduler_per_rank", lr_schedule="cosine", batch_size=1, num_epochs=1, nproc_per_node=4)
    arguments = {"num_replicas": 4, "num_train": 400}
    wrong = registry.part(config, LearningRate)(config, **arguments)
    right = LearningRate(config, **arguments)
    for step in (0, 1, 5, 20):
        at = right.at(right.position(Progress(step=4 * step, samples_in_epoch=16 * step)), None)
        assert wrong.at(wrong.position(Progress(step=step, samples_in_epoch=4 * step)), None) == at
    assert wrong.at(wrong.position(Progress(step=60, samples_in_epoch=240)), None) == pytest.approx(0.0)


def test_the_reported_loss_is_that_of_rank_0() -> None:
    sent: list[torch.Tensor] = []
    kind = registry.part(broken("rank0_loss_only"), StepMeter)
    notebook = Notebook()
    losses = (0.25, 4.0)
    others: list[torch.Tensor] = []
    for rank in (1, 0):
        meter = kind(TwinWorld(rank, others, sent), notebook if rank == 0 else Notebook())
        meter.add_loss(torch.tensor(losses[rank]))
        meter.step_done(step=1, epoch=0, lr=0.1, num_global=4, step_time_s=1.0, data_time_s=0.0)
        others = [sent[-1]]
    assert [event["loss"] for event in notebook.written] == [losses[0]]
