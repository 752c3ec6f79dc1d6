"""Training and validation splits of own data, read from memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainers.data.dataset import Augmentation, ImagePreparation, Split, Tokenizer
from trainers.data.own.cache import Array, MappedArray
from trainers.data.tables import num_validation

CPU = torch.device("cpu")
SEED = 0

Rows = npt.NDArray[np.int64]


def split_rows(labels: npt.NDArray[Any] | None, num_rows: int) -> tuple[Rows, Rows]:
    """Return the shuffled row numbers of training and validation; with labels, stratified by class.

    Args:
        labels: (rows,) class numbers, or None without classes.
    """
    generator = np.random.default_rng(SEED)
    order = generator.permutation(num_rows)
    if labels is None:
        count = num_validation(num_rows)
        return order[count:], order[:count]
    order = order[np.argsort(labels[order], kind="stable")]
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sizes = np.diff(starts, append=num_rows)
    is_validation = np.zeros(num_rows, dtype=bool)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        is_validation[start : start + num_validation(size)] = True
    return generator.permutation(order[~is_validation]), generator.permutation(order[is_validation])


class MappedRowsSplit(Split):
    """Rows of an array on disk with one target each, for tables and short texts.

    Args:
        inputs: (all rows, …) on disk.
        targets: (all rows,) class numbers or floats.
        rows: (samples,) row numbers of this split.
        stored: `mean` and `std` of each column, by which the rows on disk are standardised.
        preparation: see `Split.preparation`.
        texts: (samples,) original texts for display; `tokenizer` has converted them into tokens.
    """

    device = CPU

    def __init__(
        self,
        inputs: MappedArray,
        targets: Array,
        rows: Rows,
        *,
        stored: Mapping[str, Sequence[float]] | None = None,
        preparation: Mapping[str, list[float]] | None = None,
        texts: Sequence[str] | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._inputs = inputs
        self._targets = targets
        self._rows = rows
        self._stored = stored
        self._described = dict(preparation or {})
        self.tokenizer = tokenizer
        if texts is not None:
            self.texts = texts

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, …) rows and (batch,) targets."""
        rows = self._rows[indices.numpy()]
        inputs = self._inputs.take(rows)
        if self._stored is not None:
            mean, std = (np.array(self._stored[name]) for name in ("mean", "std"))
            offset = (mean - self._described["mean"]) / self._described["std"]
            inputs = (inputs * (std / self._described["std"]) + offset).astype(np.float32)
        elif not np.issubdtype(inputs.dtype, np.floating):
            inputs = inputs.astype(np.int64)
        return torch.from_numpy(inputs), torch.from_numpy(self._targets[rows])

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return (batch,) targets."""
        return torch.from_numpy(self._targets[self._rows[indices.numpy()]])

    def preparation(self) -> dict[str, list[float]]:
        """Return mean and deviation of each column."""
        return self._described

    def use_scale(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Standardise the columns by this mean and deviation from now on."""
        self._described = {"mean": list(mean), "std": list(std)}


class MappedImageSplit(MappedRowsSplit):
    """Images on disk; each batch is augmented and normalised on the model's device.

    Args:
        mean, std: per channel, on the scale 0 to 255.
    """

    def __init__(
        self, images: MappedArray, labels: Array, rows: Rows, *, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__(images, labels, rows)
        self._preparation = ImagePreparation(mean, std)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, channels, height, width) bytes and (batch,) class numbers."""
        rows = self._rows[indices.numpy()]
        return torch.from_numpy(self._inputs.take(rows)), torch.from_numpy(self._targets[rows])

    def prepare(self, inputs: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Return (batch, channels, height, width) floats."""
        return self._preparation(inputs, augmentation)

    def preparation(self) -> dict[str, list[float]]:
        """Return mean and deviation of each channel."""
        return self._preparation.scale(self._inputs.shape[1])

    def use_scale(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Normalise by this mean and deviation of each channel from now on."""
        self._preparation = ImagePreparation(mean, std)


class MappedTextSplit(Split):
    """Running text on disk, split into windows; the target of each token is the next one.

    Args:
        tokens: (tokens,) of the whole text.
        start, end: range of this split.
        sequence_length: tokens per window; neighbouring windows share one token.
    """

    device = CPU

    def __init__(self, tokens: MappedArray, start: int, end: int, *, sequence_length: int) -> None:
        self._tokens = tokens
        self._start = start
        self._length = sequence_length
        self._num_windows = max(0, (end - start - 1) // sequence_length)

    def __len__(self) -> int:
        return self._num_windows

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, sequence_length) inputs, and targets of the same shape shifted by one token."""
        starts = self._start + indices.numpy() * self._length
        places = starts[:, None] + np.arange(self._length + 1)
        windows = torch.from_numpy(self._tokens.take(places).astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


def whole(array: MappedArray, rows: Rows, device: torch.device) -> Tensor:
    """Return some rows of an array as a tensor on a device, copied in pieces to limit memory."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    tensor = torch.empty((len(rows), *array.shape[1:]), dtype=dtype, device=device)
    step = max(1, 16 * 2**20 // max(1, array.num_bytes // max(1, len(array))))
    for start in range(0, len(rows), step):
        chunk = array.take(rows[start : start + step])
        tensor[start : start + step] = torch.from_numpy(chunk).to(device)
    return tensor
