"""Small stand-ins for the parts a unit test has no use for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.parallel.process_group import World


@dataclass(frozen=True, kw_only=True)
class LoneWorld(World):
    """A world in which sums are this rank's own: no process group is needed."""

    def sum(self, values: Tensor) -> Tensor:
        return values


def world_of(world_size: int, rank: int = 0) -> LoneWorld:
    """Return rank `rank` of `world_size` CPU ranks, alone."""
    return LoneWorld(rank=rank, local_rank=rank, world_size=world_size, node=0, device=torch.device("cpu"))
