"""Two-dimensional parallelism: tensor parallel within a replica, fully sharded data parallel across them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from trainers.contract.config import RanksPerReplica
from trainers.contract.config.options import Check
from trainers.registry import register_strategy
from trainers.strategies.tensor import split_by_plan, tensor_parallel_problem
from trainers.strategies.zero3 import FullySharded


@register_strategy(
    "data_tensor",
    label="Data × tensor",
    description="A few ranks share one copy of the model; several such copies learn from different samples.",
    sharing="A few ranks share one copy of the model; the copies average their gradients.",
)
class DataTensor(FullySharded):
    """Neighbouring ranks share one replica; FSDP2 shards each part again across the replicas."""

    options: ClassVar[tuple[str, ...]] = ("tensor_parallel_size",)
    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            holds="all % tensor_parallel_size == 0",
            field="tensor_parallel_size",
            allowed="a number that divides the {all} ranks",
        ),
    )
    ranks_per_replica: ClassVar[RanksPerReplica] = "tensor_parallel_size"
    keeps_copies_without_sync: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = (*FullySharded.libraries, "torch.distributed.tensor.parallel")

    @classmethod
    def why_not(cls, network: nn.Module) -> str | None:
        return tensor_parallel_problem(network)

    def wrap(self, network: nn.Module) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        ranks = torch.arange(self.world.world_size).view(self.num_replicas, -1)
        groups = [self.world.create_groups(rank_grid.tolist()) for rank_grid in (ranks.T, ranks)]
        mesh = DeviceMesh.from_group(
            groups, self.world.device.type, mesh=ranks, mesh_dim_names=("data", "tensor")
        )
        split_by_plan(network, mesh["tensor"])
        self.shard_layers(network, mesh["data"])
        self.network = self.model = network
