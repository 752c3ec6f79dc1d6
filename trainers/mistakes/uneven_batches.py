"""Ranks with unequal numbers of batches, without `Join`: who has more waits for who has less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from trainers.data.sharding import MicroBatch, ShardedBatches
from trainers.engines.heartbeats import beats
from trainers.registry import register_mistake


@register_mistake(
    "uneven_batches",
    label="Uneven batches",
    description="The last rank has a batch less in each epoch: the others wait for its gradients for ever.",
    hangs=True,
)
class OneLess(ShardedBatches):
    """Leaves the last rank's last batch out; then, as programs do, all ranks meet at the epoch's end."""

    def __init__(
        self, num_samples: int, batch_size: int, *, replica: int, num_replicas: int, **rest: Any
    ) -> None:
        super().__init__(num_samples, batch_size, replica=replica, num_replicas=num_replicas, **rest)
        self._has_one_less = replica == num_replicas - 1
        # A group of its own: in training's it might be taken for the last step's collective.
        # The others, which wait in training's own group, decide how long; torch's default is 30 minutes.
        self._group = dist.new_group(backend="gloo", timeout=beats.FOR_EVER)

    def starting_at(self, first_sample: int) -> Iterator[MicroBatch]:
        num_done = first_sample
        for micro in super().starting_at(first_sample):
            if self._has_one_less and num_done + micro.num_global >= self._num_samples:
                break
            yield micro
            if micro.is_last:
                num_done += micro.num_global
        dist.barrier(self._group)
