"""ZeRO stage 1 (Rajbhandari et al. 2019): DDP, but each rank keeps the optimizer state of its part only."""

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
    description="DDP, but each rank keeps the optimizer's memory for its part of the weights only.",
    sharing="Gradients are averaged as in DDP; then each rank updates its part of the weights and "
    "sends it to the others.",
)
class Zero1(DataParallel):
    """After backward each rank steps its share of the parameters and sends them to the others."""

    is_sharded: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = (*DataParallel.libraries, "torch.distributed.optim")
    memory_shares: ClassVar[MemoryShares] = MemoryShares(optimizer_state="all")

    def make_optimizer(
        self, optimizer: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **arguments: Any
    ) -> torch.optim.Optimizer:
        """Build the optimizer over this rank's share; the parameters are packed for fewer broadcasts."""
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            groups, optimizer_class=optimizer, parameters_as_bucket_view=True, **arguments
        )

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the whole model, and of the optimizer what this rank keeps, by parameter name.

        Together the ranks give all of it, so nothing has to be gathered on one of them; with another
        number of ranks each asks for what it keeps then.
        """
        from torch.distributed.optim import ZeroRedundancyOptimizer

        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        share_buffers(self.network)
        names: dict[Tensor, str] = {tensor: name for name, tensor in self.network.named_parameters()}
        return {"model": self.network.state_dict(), "optimizer": optimizer_tensors(optimizer.optim, names)}

    def load_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Copy a state of the same names into the live one."""
        live = self.state_dict(optimizer)
        for part in ("model", "optimizer"):
            copy_tensors(live[part], state[part])
