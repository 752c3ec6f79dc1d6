"""Validation measures rank 0's share of the samples, and takes it for all."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from trainers.data.dataset import DataSpec
from trainers.optimisation.objective import Evaluator, Objective
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.registry import register_mistake


class _NobodyElse(World):
    """Takes rank 0's numbers for those of all: every rank hears the same, as decisions follow from them."""

    def sum(self, values: Tensor) -> Tensor:
        dist.broadcast(values, src=0)
        return values


@register_mistake(
    "rank0_metrics",
    label="Metrics of rank 0's share",
    description="Each rank validates on its share, and rank 0 reports its own: one N-th of the samples.",
)
class OwnShare(Evaluator):
    """Evaluates without adding up over the ranks."""

    def __init__(self, strategy: Strategy, objective: Objective, spec: DataSpec, world: World) -> None:
        super().__init__(strategy, objective, spec, _NobodyElse(**vars(world)))
