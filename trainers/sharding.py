"""Which samples each rank sees: the batches of `DistributedSampler`, exact to the last sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.distributed import World


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One rank's part of one global batch.

    Attributes:
        indices: (local batch,) samples of this rank.
        num_global: samples of all ranks together in this step.
        weight: factor on this rank's mean loss, such that DDP's mean over ranks is the mean over the
            global batch; 1 but for an uneven last batch.
    """

    indices: Tensor
    num_global: int
    weight: float


class ShardedBatches:
    """Shuffles the same way on every rank and deals each global batch out like cards.

    Nothing is padded and nothing is dropped: the last global batch may be smaller and uneven. A rank
    that gets no sample of it works on one that counts nothing, so that every rank joins the all-reduce.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int, world: World) -> None:
        self._num_samples = num_samples
        self._global_batch = batch_size * world.world_size
        self._seed = seed
        self._world = world
        self._order = torch.empty(0, dtype=torch.long)

    def __len__(self) -> int:
        """Return the steps of one epoch."""
        return steps_per_epoch(self._num_samples, self._global_batch)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch (0-based); without it every epoch would see the same order."""
        generator = torch.Generator().manual_seed(self._seed + epoch)
        self._order = torch.randperm(self._num_samples, generator=generator).to(self._world.device)

    def starting_at(self, first_batch: int) -> Iterator[Shard]:
        """Yield this rank's shards of the epoch, from batch `first_batch` on."""
        world = self._world
        for start in range(first_batch * self._global_batch, self._num_samples, self._global_batch):
            global_batch = self._order[start : start + self._global_batch]
            indices = global_batch[world.rank :: world.world_size]
            num_global = len(global_batch)
            weight = len(indices) * world.world_size / num_global
            yield Shard(
                indices=indices if len(indices) else global_batch[:1], num_global=num_global, weight=weight
            )


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Return how many global batches cover the samples."""
    return -(-num_samples // global_batch)
