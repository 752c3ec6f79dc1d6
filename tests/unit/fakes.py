"""Small substitutes for parts that unit tests do not need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.parallel.process_group import World


@dataclass(frozen=True, kw_only=True)
class LoneWorld(World):
    """A world that sums over this rank alone: no process group is needed."""

    def sum(self, values: Tensor) -> Tensor:
        return values


def world_of(world_size: int, rank: int = 0) -> LoneWorld:
    """Return CPU rank `rank` of `world_size`, without the other ranks."""
    return LoneWorld(rank=rank, local_rank=rank, world_size=world_size, node=0, device=torch.device("cpu"))
