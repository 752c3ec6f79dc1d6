"""DistributedDataParallel: a whole copy of the model on every rank, gradients averaged in backward."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.distributed import World
from trainers.registry import register_strategy


@register_strategy(
    "ddp",
    label="DDP",
    description="Every rank holds the whole model; gradients are averaged while backward runs.",
)
def wrap(model: nn.Module, world: World) -> nn.Module:
    """Wrap the model; rank 0's weights are sent to all others here."""
    return DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
