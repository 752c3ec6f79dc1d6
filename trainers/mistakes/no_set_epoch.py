"""`set_epoch` is never called: every epoch has the order of the first."""

from __future__ import annotations

from trainers.data.sharding import ShardedBatches
from trainers.registry import register_mistake


@register_mistake(
    "no_set_epoch",
    label="No set_epoch",
    description="Every epoch goes through the samples in the order of the first, and deals them out alike.",
)
class SameOrderEachEpoch(ShardedBatches):
    """Shuffles for the first epoch, whichever it is."""

    def set_epoch(self, epoch: int) -> None:
        del epoch
        super().set_epoch(0)
