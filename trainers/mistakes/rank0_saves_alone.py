"""`if rank == 0: save()`, with a barrier in it: rank 0 waits there, the others in their next step."""

from __future__ import annotations

import torch.distributed as dist

from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress
from trainers.registry import register_mistake


@register_mistake(
    "rank0_saves_alone",
    label="Rank 0 saves alone",
    description="Only rank 0 saves, and waits until all ranks are ready for it: they never come.",
    hangs=True,
)
class OnRank0(Checkpointer):
    """Saves on rank 0; the others train on."""

    def save(self, progress: Progress, reason: str, *, value: float | None = None) -> float:
        if not self._world.is_main:
            return 0.0
        # In a group of its own: in training's it might be taken for the next step's collective.
        dist.barrier(self._world.slow_group)
        return super().save(progress, reason, value=value)
