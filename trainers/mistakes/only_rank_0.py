"""Mistakes in which only rank 0 does work that all ranks should share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress
from trainers.data.dataset import DataSpec, Split
from trainers.evaluation import Evaluator
from trainers.optimisation.objective import Objective
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.registry import register_mistake
from trainers.report.metrics import Evaluation
from trainers.report.step_meter import StepMeter


@register_mistake(
    "rank0_loss_only",
    label="Loss of rank 0 alone",
    description="The reported training loss is rank 0's loss, which is noisier than the mean over all ranks.",
)
class OwnLoss(StepMeter):
    """Reports rank 0's loss: weights it by the number of ranks, and the losses of the other ranks by 0."""

    def add_loss(self, share: Tensor) -> None:
        is_main = self._world.is_main
        super().add_loss(share * self._world.world_size if is_main else torch.zeros_like(share))


class _OnlyRank0(World):
    """Replaces a sum by rank 0's value, on all ranks, so that they still make the same decisions."""

    def sum(self, values: Tensor) -> Tensor:
        dist.broadcast(values, src=0)
        return values


@register_mistake(
    "rank0_metrics",
    label="Metrics of rank 0's share",
    description="Each rank validates on its share of the samples, and rank 0 reports only its own result.",
)
class OwnShare(Evaluator):
    """Evaluates without summing over the ranks."""

    def __init__(self, strategy: Strategy, objective: Objective, spec: DataSpec, world: World) -> None:
        super().__init__(strategy, objective, spec, _OnlyRank0(**vars(world)))


@register_mistake(
    "rank0_saves_alone",
    label="Rank 0 saves alone",
    description="Only rank 0 saves, and waits for the other ranks, which never join.",
    hangs=True,
)
class SavesOnRank0(Checkpointer):
    """Saves on rank 0 only; all other ranks continue to train."""

    def save(self, progress: Progress, reason: str, *, value: float | None = None) -> float:
        if not self._world.is_main:
            return 0.0
        # In a separate group: in the training group it could match the next step's collective.
        dist.barrier(self._world.slow_group)
        return super().save(progress, reason, value=value)


class _OtherGroup(World):
    """Sums in a separate group: in the training group it could match the next step's collective."""

    def sum(self, values: Tensor) -> Tensor:
        values = values.cpu()
        dist.all_reduce(values, group=self.slow_group)
        return values


@register_mistake(
    "rank0_validates_alone",
    label="Rank 0 validates alone",
    description="Only rank 0 validates, and waits forever for the other ranks to sum the counts.",
    hangs=True,
)
class ValidatesOnRank0(Evaluator):
    """Evaluates on rank 0 only; all other ranks continue to train."""

    def __init__(self, strategy: Strategy, objective: Objective, spec: DataSpec, world: World) -> None:
        super().__init__(strategy, objective, spec, _OtherGroup(**vars(world)))

    def evaluate(
        self, split: Split, *, batch_size: int, should_interrupt: Callable[[], bool]
    ) -> Evaluation | None:
        del should_interrupt
        if not self.world.is_main:
            return Evaluation(loss=math.nan, metrics={})
        return super().evaluate(split, batch_size=batch_size, should_interrupt=lambda: False)
