"""What a data set is to the loop: a description, and two splits that give whole batches by index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

ASSETS_DATA = Path(__file__).resolve().parent.parent / "assets" / "data"

IMAGE_CLASSIFICATION = "image_classification"
LANGUAGE_MODELLING = "language_modelling"


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The shape of a data set, enough to build a model for it.

    Attributes:
        task: what is learnt; a model says which tasks it can do.
        input_shape: of one sample: (channels, height, width), or (sequence_length,).
        num_classes: classes to tell apart, or characters in the vocabulary.
        class_names: one name a class, or one character a vocabulary entry.
        num_train, num_validation: samples in each split.
        sample_unit: what one sample is, in plain words ("images").
        description, source: for the page: what it is, where it comes from and under which licence.
        watched_paths: files whose coming or going changes this description.
    """

    task: str
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...]
    num_train: int
    num_validation: int
    sample_unit: str
    description: str
    source: str
    watched_paths: tuple[Path, ...] = ()


class Split(Protocol):
    """Samples that lie on the device and are picked in whole batches."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of these samples; `indices` is (batch,) on the split's device."""
        ...


class Dataset(Protocol):
    """One data set of the catalogue."""

    def spec(self) -> DataSpec:
        """Describe the data without loading all of it."""
        ...

    def load(self, device: torch.device) -> tuple[Split, Split]:
        """Return the training and the validation split on `device`."""
        ...


class ImageSplit:
    """Grey images kept as bytes and normalised a batch at a time.

    Args:
        images: (samples, height, width) uint8.
        labels: (samples,) of class numbers.
        mean, std: of the training images, on the scale of the bytes.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, *, mean: float, std: float, device: torch.device
    ) -> None:
        assert images.dtype == torch.uint8 and images.dim() == 3 and len(images) == len(labels)
        self.images = images.unsqueeze(1).to(device)
        self.labels = labels.long().to(device)
        self._mean = mean
        self._scale = 1.0 / std

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, 1, height, width) float inputs and (batch,) class numbers."""
        inputs = self.images[indices].float().sub_(self._mean).mul_(self._scale)
        return inputs, self.labels[indices]


class CharacterSplit:
    """A text cut into windows; each character's target is the one after it.

    Args:
        tokens: (characters,) uint8, numbers of the vocabulary.
        sequence_length: characters a window.
    """

    def __init__(self, tokens: Tensor, *, sequence_length: int, device: torch.device) -> None:
        assert tokens.dtype == torch.uint8 and tokens.dim() == 1
        # Neighbouring windows share one character: the last target of one is the first input of the next.
        self._windows = tokens.to(device).unfold(0, sequence_length + 1, sequence_length)

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, sequence_length) inputs and the same moved on by one character."""
        windows = self._windows[indices].long()
        return windows[:, :-1], windows[:, 1:]


def num_windows(num_characters: int, sequence_length: int) -> int:
    """Return how many windows `CharacterSplit` cuts from a text."""
    return max(0, (num_characters - 1) // sequence_length)
