"""Sharding of samples over ranks, and loading of batches on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainers.contract.config import Config
from trainers.data.dataset import Augmentation, Split
from trainers.machine import facilities

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

    No sample is repeated or dropped, so the last global batch may be smaller and uneven. A rank without a
    sample in this batch computes one with weight 0, so that every rank joins the all-reduce. The position in
    an epoch is counted in samples, so that a resumed run can have another number of ranks.
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
        # Replica 0 has the most samples, so every rank uses the number of pieces of replica 0.
        most = -(-num_global // self._num_replicas)
        num_pieces = -(-most // self._batch_size)
        for piece in range(num_pieces):
            start = piece * self._batch_size
            indices = mine if num_pieces == 1 else mine[start : start + self._batch_size]
            # DDP averages over R replicas. With n of N samples here and weight n·R / N, the average is
            # (1 / R) · Σ (n·R / N) · mean = (1 / N) · Σ n · mean: the mean over the global batch.
            num_mine = len(indices)
            yield MicroBatch(
                indices=indices if num_mine else global_batch[:1],
                weight=num_mine * self._num_replicas / num_global,
                num_global=num_global,
                is_last=piece == num_pieces - 1,
            )


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Return the number of global batches per epoch."""
    return -(-num_samples // global_batch)


class Batch(NamedTuple):
    """One micro-batch ready for the model; see `MicroBatch` for the rest."""

    inputs: Tensor
    targets: Tensor
    weight: float
    num_global: int
    is_last: bool


class Loader:
    """Yields a split's micro-batches of an epoch, augmented and prepared on the model's device.

    The training process draws all random numbers in order, so that a resumed run draws the same numbers with
    any number of workers.
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
        self._data_loader: DataLoader[tuple[Tensor, Tensor]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch (0-based); if it is not called, every epoch has the same order."""
        self._batches.set_epoch(epoch)

    def starting_at(self, first_sample: int) -> Iterator[Batch]:
        """Yield the epoch's micro-batches after its first `first_sample` global samples."""
        is_beside_model = self._split.device.type == self._device.type
        is_resident = is_beside_model and (self._device.type != "cpu" or self._config.num_workers == 0)
        stored = self._picked(first_sample) if is_resident else self._loaded(first_sample)
        for micro, inputs, targets in stored:
            yield Batch(
                inputs=self._split.prepare(inputs, self._augmentation),
                targets=targets,
                weight=micro.weight,
                num_global=micro.num_global,
                is_last=micro.is_last,
            )

    def _picked(self, first_sample: int) -> Iterator[tuple[MicroBatch, Tensor, Tensor]]:
        """Yield batches picked in this process, from samples on the model's device."""
        self._batches.to(self._split.device)
        for micro in self._batches.starting_at(first_sample):
            yield micro, *self._split.batch(micro.indices)

    def _loaded(self, first_sample: int) -> Iterator[tuple[MicroBatch, Tensor, Tensor]]:
        """Yield batches that a DataLoader picks on the CPU and that are then copied to the model's device."""
        self._indices.first_sample = first_sample
        if self._data_loader is None:
            self._data_loader = self._make_data_loader()
        is_pinned = self._data_loader.pin_memory
        # The DataLoader iterates over the same micro-batches for their indices; `zip` joins both in order.
        micros = self._batches.starting_at(first_sample)
        for micro, (inputs, targets) in zip(micros, self._data_loader, strict=True):
            yield (
                micro,
                inputs.to(self._device, non_blocking=is_pinned),
                targets.to(self._device, non_blocking=is_pinned),
            )

    def _make_data_loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return a DataLoader whose workers persist over epochs, because starting them is slow."""
        config = self._config
        return DataLoader(
            _ByIndices(self._split),
            batch_size=None,
            sampler=self._indices,
            num_workers=config.num_workers,
            # Use fork: Python 3.14's default start method imports torch in each worker and pickles the split,
            # which plug-ins need not support.
            multiprocessing_context="fork" if config.num_workers and facilities.are_available() else None,
            prefetch_factor=config.prefetch_factor if config.num_workers else None,
            persistent_workers=config.num_workers > 0,
            pin_memory=config.pin_memory and self._device.type == "cuda",
            # DataLoader draws a seed for its workers; a separate generator keeps training's generator
            # unchanged.
            generator=torch.Generator().manual_seed(config.seed),
        )


class _Indices:
    """Generates the indices of the epoch's micro-batches lazily, because a long epoch has many."""

    def __init__(self, batches: ShardedBatches) -> None:
        self._batches = batches
        self.first_sample = 0

    def __iter__(self) -> Iterator[Tensor]:
        return (micro.indices for micro in self._batches.starting_at(self.first_sample))


class _ByIndices(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Adapts a split to DataLoader: one item is a whole micro-batch."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __getitem__(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._split.batch(indices)
