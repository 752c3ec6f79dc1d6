"""No `DistributedSampler`: every rank goes through the whole data set, in the same order as all others."""

from __future__ import annotations

from typing import Any

from trainers.data.sharding import ShardedBatches
from trainers.registry import register_mistake


@register_mistake(
    "no_sampler",
    label="No sampler",
    description="Every rank sees all samples, in the same order: N ranks do the same work N times.",
)
class WholeDataSet(ShardedBatches):
    """Deals the samples out to one rank, which every rank takes itself for."""

    def __init__(
        self, num_samples: int, batch_size: int, *, replica: int, num_replicas: int, **rest: Any
    ) -> None:
        del replica, num_replicas
        super().__init__(num_samples, batch_size, replica=0, num_replicas=1, **rest)
