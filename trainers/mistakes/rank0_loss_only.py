"""The training loss that is reported is that of rank 0's own samples."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.registry import register_mistake
from trainers.report.meter import StepMeter


@register_mistake(
    "rank0_loss_only",
    label="Loss of rank 0 alone",
    description="The reported training loss is of rank 0's samples, not the mean over all: it is noisier.",
)
class OwnLoss(StepMeter):
    """Reports the mean over ranks of rank 0's loss, counted for all of them, and of nothing."""

    def add_loss(self, share: Tensor) -> None:
        is_main = self._world.is_main
        super().add_loss(share * self._world.world_size if is_main else torch.zeros_like(share))
