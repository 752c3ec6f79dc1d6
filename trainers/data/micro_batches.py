"""Sharding of each global batch over the ranks, and into micro-batches with gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

INDICES_AT_ONCE = 2**16
BATCHES_AT_ONCE = 512


class MicroBatch(NamedTuple):
    """One rank's part of a global batch, or a piece of it with gradient accumulation.

    Attributes:
        indices: (batch,) sample numbers of this rank.
        weight: factor for this rank's mean loss. With it, the mean over the replicas, summed over the
            pieces, is the mean over the global batch, even if ranks have different numbers of samples.
        num_global: number of samples of all ranks and pieces in this optimizer step.
        is_last: True if an optimizer step follows.
    """

    indices: Tensor
    weight: float
    num_global: int
    is_last: bool


class ShardedBatches:
    """Shuffles identically on every rank and distributes each global batch round-robin over the replicas.

    No sample is repeated or dropped: the last global batch may be smaller and uneven. A rank without a
    sample in it computes one with weight 0, so that every rank joins the all-reduce. The position in an
    epoch is counted in samples, so that a resumed run can have another number of ranks.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        num_accumulated: int = 1,
        seed: int,
        replica: int,
        num_replicas: int,
    ) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._global_batch = batch_size * num_replicas * num_accumulated
        self._seed = seed
        self._replica = replica
        self._num_replicas = num_replicas
        self._order = torch.empty(0, dtype=torch.long)

    @property
    def num_replicas(self) -> int:
        """Number of replicas that each global batch is distributed over."""
        return self._num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch (0-based); if it is not called, every epoch has the same order."""
        generator = torch.Generator().manual_seed(self._seed + epoch)
        # int32 needs half the memory of int64: a large text has tens of millions of passages.
        kind = torch.int32 if self._num_samples < 2**31 else torch.int64
        self._order = torch.randperm(self._num_samples, generator=generator, dtype=kind)

    def to(self, device: torch.device) -> None:
        """Move the epoch's order to the device of the samples."""
        self._order = self._order.to(device)

    def starting_at(self, first_sample: int) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of the epoch after its first `first_sample` global samples."""
        # Convert and split the indices of many batches together: on a GPU each conversion is a kernel, and
        # slicing batch by batch costs more host time.
        at_once = max(1, min(BATCHES_AT_ONCE, INDICES_AT_ONCE // self._global_batch)) * self._global_batch
        for first in range(first_sample, self._num_samples, at_once):
            order = self._order[first : first + at_once].long()
            for global_batch in order.split(self._global_batch):
                yield from self._shard(global_batch)

    def _shard(self, global_batch: Tensor) -> Iterator[MicroBatch]:
        num_global = len(global_batch)
        mine = global_batch[self._replica :: self._num_replicas] if self._num_replicas > 1 else global_batch
        # Replica 0 has the most samples; every rank goes through the number of pieces that it needs.
        maximum = -(-num_global // self._num_replicas)
        num_pieces = -(-maximum // self._batch_size)
        for chunk in range(num_pieces):
            start = chunk * self._batch_size
            indices = mine if num_pieces == 1 else mine[start : start + self._batch_size]
            # DDP averages over R replicas. With n of N samples here and weight n·R / N, the average is
            # (1 / R) · Σ (n·R / N) · mean = (1 / N) · Σ n · mean: the mean over the global batch.
            num_mine = len(indices)
            yield MicroBatch(
                indices=indices if num_mine else global_batch[:1],
                weight=num_mine * self._num_replicas / num_global,
                num_global=num_global,
                is_last=chunk == num_pieces - 1,
            )


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Return the number of global batches per epoch."""
    return -(-num_samples // global_batch)
