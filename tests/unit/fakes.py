"""Small substitutes for parts that unit tests do not need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainers.data.dataset import DataSpec
from trainers.parallel.process_group import World


@dataclass(frozen=True, kw_only=True)
class LoneWorld(World):
    """A world that sums over this rank alone: no process group is needed."""

    def sum(self, values: Tensor) -> Tensor:
        return values


def world_of(world_size: int, rank: int = 0) -> LoneWorld:
    """Return CPU rank `rank` of `world_size`, without the other ranks."""
    return LoneWorld(rank=rank, local_rank=rank, world_size=world_size, node=0, device=torch.device("cpu"))


def spec_of(task: str, num_classes: int, **changes: Any) -> DataSpec:
    """Return the description of a small data set of this task; `changes` replace its other fields."""
    size = {"input_shape": (4,), "num_classes": num_classes, "num_train": 1, "num_validation": 1}
    words = {"class_names": (), "sample_unit": "", "description": "", "source": ""}
    return DataSpec(**({"task": task} | size | words | changes))  # type: ignore[arg-type]
