"""Loading of micro-batches on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainers.contract.config import Config
from trainers.data.dataset import Augmentation, Split
from trainers.data.micro_batches import MicroBatch, ShardedBatches
from trainers.machine import facilities


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
