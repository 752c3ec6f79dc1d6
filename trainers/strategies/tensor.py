"""Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): each layer's matrices are split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from trainers.contract.config import RanksPerReplica
from trainers.models.networks.transformer import Block
from trainers.parallel.sharded import ShardedStrategy
from trainers.parallel.strategy import MemoryShares
from trainers.registry import register_strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


@register_strategy(
    "tensor",
    label="Tensor parallel",
    description="All ranks work on the same samples, each on its columns and rows of every large matrix.",
    sharing="All ranks work on the same samples, each on its part of every layer, and sum the results.",
)
class TensorParallel(ShardedStrategy):
    """Splits the layers in the network's plan; all other parameters are replicated and stay equal.

    They stay equal because every rank computes on the same samples, and an all-reduce returns the same bits
    on all ranks.
    """

    ranks_per_replica: ClassVar[RanksPerReplica] = "all"
    keeps_copies_without_sync: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("torch.distributed.tensor.parallel", "torch._dynamo.utils")
    memory_shares: ClassVar[MemoryShares] = MemoryShares(
        parameters="all", gradients="all", optimizer_state="all"
    )

    @classmethod
    def why_not(cls, network: nn.Module) -> str | None:
        return tensor_parallel_problem(network)

    def wrap(self, network: nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        world = self.world
        mesh = init_device_mesh(world.device.type, (world.world_size,), mesh_dim_names=("tensor",))
        split_by_plan(network, mesh)
        self.network = self.model = network


def tensor_parallel_problem(network: nn.Module) -> str | None:
    """Return why a network's matrices cannot be split, or None."""
    if callable(getattr(network, "tensor_parallel_plan", None)):
        return None
    return "it does not define how to split its layers (it has no tensor_parallel_plan)"


def split_by_plan(network: nn.Module, mesh: DeviceMesh) -> None:
    """Split a network over a one-dimensional mesh according to its `tensor_parallel_plan`.

    Raises:
        ValueError: if a layer or its attention heads cannot be split evenly.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    plan: dict[str, ParallelStyle] = network.tensor_parallel_plan()  # type: ignore[operator]
    num_parts = mesh.size()
    for module in network.modules():
        heads = _num_heads(module)
        if heads % num_parts:
            raise ValueError(f"{heads} attention heads cannot be split evenly over {num_parts} ranks")
    for name, style in plan.items():
        _check_size(name, network.get_submodule(name), style, num_parts)
    parallelize_module(network, mesh, plan)


def _num_heads(module: nn.Module) -> int:
    """Return the number of a module's attention heads, or 0."""
    if isinstance(module, Block):
        return module.query_key_value.out_features // (3 * module.head_width)
    heads = getattr(module, "num_heads", 0)
    return heads if isinstance(heads, int) else 0


def _check_size(name: str, module: nn.Module, style: ParallelStyle, num_parts: int) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    if isinstance(module, nn.Linear):
        size = {ColwiseParallel: module.out_features, RowwiseParallel: module.in_features}.get(type(style), 0)
        if size % num_parts:
            raise ValueError(
                f"{name} has a size of {size}, which cannot be split evenly over {num_parts} ranks"
            )
