"""ZeRO stage 3 (Rajbhandari et al. 2019) with FSDP2: each rank holds a shard of every weight."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.parallel.batch_norm import has_batch_norm
from trainers.parallel.sharded import ShardedStrategy, layers_of
from trainers.parallel.strategy import MemoryShares
from trainers.registry import register_strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy


class FullySharded(ShardedStrategy):
    """Shards parameters, gradients and optimizer state over the ranks, layer by layer.

    Class attributes:
        frees_after_forward: free a layer's gathered weights after its forward pass and gather them again in
            backward: less memory, one more all-gather.
    """

    frees_after_forward: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("torch.distributed.fsdp", "torch._dynamo.utils")
    memory_shares: ClassVar[MemoryShares] = MemoryShares(
        parameters="all", gradients="all", optimizer_state="all"
    )

    def wrap(self, network: nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        world = self.world
        mesh = init_device_mesh(world.device.type, (world.world_size,), mesh_dim_names=("data",))
        self.shard_layers(network, mesh)
        self.network = self.model = network

    def shard_layers(self, network: nn.Module, mesh: DeviceMesh) -> None:
        """Apply `fully_shard` to each layer, then to the network for the remaining parameters.

        The parameters of one call are gathered together, so sharding by layer keeps peak memory low.
        """
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        uses_bf16 = self.config.precision == "bf16" and not has_batch_norm(network)
        policy = _bf16_policy() if uses_bf16 else MixedPrecisionPolicy()
        for layer in layers_of(network):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=self.frees_after_forward)
        root_policy = replace(policy, output_dtype=torch.float32 if uses_bf16 else None)
        fully_shard(network, mesh=mesh, mp_policy=root_policy, reshard_after_forward=self.frees_after_forward)
        if dist.get_backend(mesh.get_group()) == "gloo":
            # With torch 2.8, gloo's reduce-scatter ignores AVG and returns the sum (PyTorch issue 162338).
            for module in network.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)

    @contextlib.contextmanager
    def gradient_sync(self, *, enabled: bool) -> Iterator[None]:
        """Skip the reduce-scatter for micro-batches that only accumulate; their gradients stay unsharded."""
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self.network, FSDPModule)
        self.network.set_requires_gradient_sync(enabled)
        yield

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the model's output and free gathered weights, since no backward pass follows to do so."""
        from torch.distributed.fsdp import FSDPModule

        output = super().scores(inputs)
        for module in self.network.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return output


@register_strategy(
    "zero3",
    label="FSDP (ZeRO-3)",
    description="Every rank keeps a shard of all weights; each layer is gathered just before it is used.",
    sharing="Each rank keeps its part of everything; a layer's weights are gathered just before they "
    "are needed.",
)
class Zero3(FullySharded):
    """FSDP2 that frees each layer after its forward pass."""


def _bf16_policy() -> MixedPrecisionPolicy:
    """Return a policy that gathers weights in bf16 and reduces gradients in fp32; shards stay in fp32.

    Autocast alone would gather weights in fp32 and keep a bf16 copy until backward. It stays enabled in
    addition: softmax and losses stay in fp32, and fp32 buffers can be combined with bf16 weights.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
