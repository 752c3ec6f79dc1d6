"""Brings micro-batches to the model: picked on the device where the data lies there, else carried over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainers.contract.config import Config
from trainers.data.dataset import Augmentation, Split
from trainers.data.sharding import MicroBatch, ShardedBatches


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
