"""`if rank == 0: validate()`, with a collective in it: rank 0 waits there, the others in their next step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from trainers.data.dataset import DataSpec, Split
from trainers.optimisation.objective import Evaluator, Objective
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.registry import register_mistake
from trainers.report.metrics import Evaluation


class _OtherGroup(World):
    """Adds up in a group of its own: in training's it might be taken for the next step's collective."""

    def sum(self, values: Tensor) -> Tensor:
        values = values.cpu()
        dist.all_reduce(values, group=self.slow_group)
        return values


@register_mistake(
    "rank0_validates_alone",
    label="Rank 0 validates alone",
    description="Only rank 0 validates, and adds its numbers up over all ranks: it waits for them for ever.",
    hangs=True,
)
class OnRank0(Evaluator):
    """Evaluates on rank 0; the others train on."""

    def __init__(self, strategy: Strategy, objective: Objective, spec: DataSpec, world: World) -> None:
        super().__init__(strategy, objective, spec, _OtherGroup(**vars(world)))

    def evaluate(
        self, split: Split, *, batch_size: int, should_break_off: Callable[[], bool]
    ) -> Evaluation | None:
        del should_break_off
        if not self.world.is_main:
            return Evaluation(loss=math.nan, metrics={})
        return super().evaluate(split, batch_size=batch_size, should_break_off=lambda: False)
