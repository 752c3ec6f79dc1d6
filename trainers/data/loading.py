"""Loading of batches on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainers.contract.config import Config
from trainers.data.dataset import Augmentation, Split

INDICES_AT_ONCE = 2**16
BATCHES_AT_ONCE = 512


class MicroBatch(NamedTuple):
    """One rank's part of a global batch, or a piece of it where gradients are accumulated.

    Attributes:
        indices: (batch,) samples of this rank.
        weight: factor on this rank's mean loss, such that the mean over replicas, added up over the
            pieces, is the mean over the global batch.
        num_global: samples of all ranks and pieces together in this optimizer step.
        is_last: the optimizer steps after it.
    """

    indices: Tensor
    weight: float
    num_global: int
    is_last: bool


class ShardedBatches:
    """Shuffles the same way on every rank and deals each global batch out like cards.

    Nothing is padded and nothing is dropped: the last global batch may be smaller and uneven. A rank
    that gets no sample of it works on one that counts nothing, so that every rank joins the all-reduce.
    Position is counted in samples, so that an epoch can go on with another number of ranks.
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
        """Over how many replicas each global batch is dealt."""
        return self._num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch (0-based); without it every epoch would see the same order."""
        generator = torch.Generator().manual_seed(self._seed + epoch)
        # Half the memory of torch's usual kind: a large text has tens of millions of passages.
        kind = torch.int32 if self._num_samples < 2**31 else torch.int64
        self._order = torch.randperm(self._num_samples, generator=generator, dtype=kind)

    def to(self, device: torch.device) -> None:
        """Bring the epoch's order to where the samples lie."""
        self._order = self._order.to(device)

    def starting_at(self, first_sample: int) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of the epoch after its first `first_sample` global samples."""
        # The indices of many batches become int64 and are divided at once: on a GPU each conversion is a
        # kernel, and slicing one by one costs the host more.
        at_once = max(1, min(BATCHES_AT_ONCE, INDICES_AT_ONCE // self._global_batch)) * self._global_batch
        for first in range(first_sample, self._num_samples, at_once):
            order = self._order[first : first + at_once].long()
            for global_batch in order.split(self._global_batch):
                yield from self._deal(global_batch)

    def _deal(self, global_batch: Tensor) -> Iterator[MicroBatch]:
        num_global = len(global_batch)
        mine = global_batch[self._replica :: self._num_replicas] if self._num_replicas > 1 else global_batch
        # Replica 0 has the most: as many pieces as it needs is what every rank goes through.
        most = -(-num_global // self._num_replicas)
        num_pieces = -(-most // self._batch_size)
        for piece in range(num_pieces):
            start = piece * self._batch_size
            indices = mine if num_pieces == 1 else mine[start : start + self._batch_size]
            num_mine = len(indices)
            yield MicroBatch(
                indices=indices if num_mine else global_batch[:1],
                weight=num_mine * self._num_replicas / num_global,
                num_global=num_global,
                is_last=piece == num_pieces - 1,
            )


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Return how many global batches cover the samples."""
    return -(-num_samples // global_batch)


class Batch(NamedTuple):
    """One micro-batch ready for the model; see `MicroBatch` for the rest."""

    inputs: Tensor
    targets: Tensor
    weight: float
    num_global: int
    is_last: bool


class Loader:
    """Gives a split's micro-batches of an epoch, varied and prepared on the model's device.

    What is random about them is drawn here, in the training process and in order, so that a resumed run
    draws the same again, however many workers there are.
    """

    def __init__(self, split: Split, batches: ShardedBatches, config: Config, device: torch.device) -> None:
        self._split = split
        self._batches = batches
        self._config = config
        self._device = device
        varied = config.random_flip or config.random_crop
        self._augmentation = (
            Augmentation(flip=config.random_flip, crop_pixels=config.random_crop) if varied else None
        )
        self._indices = _Indices(batches)
        self._carrier: DataLoader[tuple[Tensor, Tensor]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch (0-based); without it every epoch would see the same order."""
        self._batches.set_epoch(epoch)

    def starting_at(self, first_sample: int) -> Iterator[Batch]:
        """Yield the epoch's micro-batches after its first `first_sample` global samples."""
        is_beside_model = self._split.device.type == self._device.type
        is_resident = is_beside_model and (self._device.type != "cpu" or self._config.num_workers == 0)
        stored = self._picked(first_sample) if is_resident else self._carried(first_sample)
        for micro, inputs, targets in stored:
            yield Batch(
                inputs=self._split.prepare(inputs, self._augmentation),
                targets=targets,
                weight=micro.weight,
                num_global=micro.num_global,
                is_last=micro.is_last,
            )

    def _picked(self, first_sample: int) -> Iterator[tuple[MicroBatch, Tensor, Tensor]]:
        self._batches.to(self._split.device)
        for micro in self._batches.starting_at(first_sample):
            yield micro, *self._split.batch(micro.indices)

    def _carried(self, first_sample: int) -> Iterator[tuple[MicroBatch, Tensor, Tensor]]:
        self._indices.first_sample = first_sample
        if self._carrier is None:
            self._carrier = self._make_carrier()
        is_pinned = self._carrier.pin_memory
        micros = self._batches.starting_at(first_sample)
        for micro, (inputs, targets) in zip(micros, self._carrier, strict=True):
            yield (
                micro,
                inputs.to(self._device, non_blocking=is_pinned),
                targets.to(self._device, non_blocking=is_pinned),
            )

    def _make_carrier(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return what picks batches; its workers stay for all epochs, because starting them takes time."""
        config = self._config
        return DataLoader(
            _ByIndices(self._split),
            batch_size=None,
            sampler=self._indices,
            num_workers=config.num_workers,
            prefetch_factor=config.prefetch_factor if config.num_workers else None,
            persistent_workers=config.num_workers > 0,
            pin_memory=config.pin_memory and self._device.type == "cuda",
            # The loader would draw a seed for its workers here: that draw must not move training's own.
            generator=torch.Generator().manual_seed(config.seed),
        )


class _Indices:
    """The indices of the epoch's micro-batches, one after the other: a long epoch is never a list."""

    def __init__(self, batches: ShardedBatches) -> None:
        self._batches = batches
        self.first_sample = 0

    def __iter__(self) -> Iterator[Tensor]:
        return (micro.indices for micro in self._batches.starting_at(self.first_sample))


class _ByIndices(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A split as the DataLoader wants it: an index is a whole micro-batch of indices."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __getitem__(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._split.batch(indices)
