"""ZeRO stage 1 (Rajbhandari et al. 2019): DDP with the optimizer state sharded over the ranks."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from trainers.parallel.sharded import copy_tensors, optimizer_tensors, share_buffers
from trainers.parallel.strategy import MemoryShares
from trainers.registry import register_strategy
from trainers.strategies.ddp import DataParallel


@register_strategy(
    "zero1",
    label="ZeRO-1",
    description="DDP, but each rank keeps only the optimizer state of its part of the weights.",
    sharing="Gradients are averaged as in DDP; then each rank updates its part of the weights and "
    "sends it to the others.",
)
class Zero1(DataParallel):
    """After backward, each rank updates its share of the parameters and broadcasts them."""

    is_sharded: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = (*DataParallel.libraries, "torch.distributed.optim")
    memory_shares: ClassVar[MemoryShares] = MemoryShares(optimizer_state="all")

    def make_optimizer(
        self, optimizer: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **arguments: Any
    ) -> torch.optim.Optimizer:
        """Create the optimizer for this rank's share; parameters are packed for fewer broadcasts."""
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            groups, optimizer_class=optimizer, parameters_as_bucket_view=True, **arguments
        )

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return all weights and this rank's optimizer state, by parameter name.

        All ranks together save the complete optimizer state, so it is never gathered on one rank. A run with
        another number of ranks loads the parameters of its new shares by name.
        """
        from torch.distributed.optim import ZeroRedundancyOptimizer

        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        share_buffers(self.network)
        names: dict[Tensor, str] = {tensor: name for name, tensor in self.network.named_parameters()}
        return {"model": self.network.state_dict(), "optimizer": optimizer_tensors(optimizer.optim, names)}

    def load_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Copy a state with the same names into the live one."""
        live = self.state_dict(optimizer)
        for part in ("model", "optimizer"):
            copy_tensors(live[part], state[part])
