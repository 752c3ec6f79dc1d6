"""The interface of a data set: a description (`DataSpec`) and two splits that return batches by index."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from trainers.contract.config import Config
from trainers.files.plain_files import ASSETS

ASSETS_DATA = ASSETS / "data"

IMAGE_CLASSIFICATION = "image_classification"
TEXT_CLASSIFICATION = "text_classification"
LANGUAGE_MODELLING = "language_modelling"
TABULAR_CLASSIFICATION = "tabular_classification"
TABULAR_REGRESSION = "tabular_regression"

MOST_CONFUSED = 20  # largest number of classes with a confusion matrix: more do not fit on a screen
MOST_DIGESTED = 1024
PADDING = 0  # the token that pads short texts


class NotInstalledError(LookupError):
    """An optional package is missing on this machine; the message says how to install it.

    Args:
        watched_paths: paths whose change may mean that it has been installed.
        requirement: the pinned pip requirement; only the package's data files are used, its code is not run.
    """

    def __init__(
        self, message: str, watched_paths: Sequence[Path] = (), *, requirement: str | None = None
    ) -> None:
        super().__init__(message)
        self.watched_paths = tuple(watched_paths)
        self.requirement = requirement


class Tokenizer(Protocol):
    """Converts text into token numbers and back; short texts are padded with the token `padding`."""

    vocabulary_size: int
    padding: int

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return each text's tokens, truncated to `max_length`."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The data's part of a configuration. Each data set uses only the options that apply to it.

    Attributes:
        path, label_column, task, skip_unreadable, images_path, reading: for own data; see the
            configuration.
        sequence_length: length of the model's input in tokens; None: the data set's default.
        normalise: True to scale inputs to mean 0 and deviation 1.
        tokenizer: tokenizer of a pretrained model; None: the data set's own.
    """

    path: str = ""
    label_column: str = ""
    task: str = "auto"
    skip_unreadable: bool = False
    images_path: str = ""
    reading: str = ""
    sequence_length: int | None = None
    normalise: bool = True
    tokenizer: Tokenizer | None = None

    @classmethod
    def of(cls, config: Config, tokenizer: Tokenizer | None = None) -> DataOptions:
        """Return the data options of a configuration."""
        return cls(
            path=config.data_path,
            label_column=config.label_column,
            task=config.data_task,
            skip_unreadable=config.skip_unreadable,
            images_path=config.images_path,
            reading=config.data_reading,
            sequence_length=config.sequence_length,
            normalise=config.normalise,
            tokenizer=tokenizer,
        )


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a table, and the numbers that encode it.

    Attributes:
        values: categories, one-hot encoded; empty for a numeric column, which is one number.
        has_other: True if one more number encodes all other categories.
        has_missing: True if the last number indicates an empty cell.
    """

    name: str
    values: tuple[str, ...] = ()
    has_other: bool = False
    has_missing: bool = False

    @property
    def width(self) -> int:
        """Count of numbers that encode a cell."""
        return (len(self.values) + self.has_other if self.values else 1) + self.has_missing

    def written(self, numbers: Sequence[float]) -> float | str:
        """Return the cell that these numbers encode, in the column's units."""
        if self.has_missing and numbers[-1] > 0.5:
            return ""
        if not self.values:
            return numbers[0]
        indices = [*self.values, *["another"] * self.has_other]
        return next((value for value, is_it in zip(indices, numbers, strict=False) if is_it > 0.5), "")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The description of a data set, sufficient to build a model for it.

    Attributes:
        task: name of the task; each model lists the tasks it supports.
        input_shape: shape of one sample: (channels, height, width), (sequence_length,) or (features,).
        num_classes: number of classes, or size of the vocabulary for language modelling; 1 for regression.
        class_names: one name per class, or one character per vocabulary entry; may be empty for tokens.
        num_train, num_validation: number of samples in each split.
        sample_unit: plural noun for samples ("images").
        description, source: texts for the page: content, origin and licence.
        watched_paths: files whose creation or removal changes this description.
        vocabulary_size: number of tokens for text inputs, else 0.
        padding: the token that pads short texts.
        decode: converts tokens into text if `class_names` cannot.
        feature_names: names of the numbers that encode a row of a table.
        columns: columns of the table in the file's order; empty if each number is one column.
        target_mean, target_std: convert a model's output back to the target's units.
        num_bytes: memory of the training split, if it may be too large for a device; else 0.
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
    vocabulary_size: int = 0
    padding: int = PADDING
    decode: Callable[[Sequence[int]], str] | None = None
    feature_names: tuple[str, ...] = ()
    columns: tuple[TableColumn, ...] = ()
    target_mean: float = 0.0
    target_std: float = 1.0
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Data augmentation of training images; random numbers come from torch's generator of their device."""

    flip: bool = False
    crop_pixels: int = 0


class Split(ABC):
    """Samples that are read by batch.

    `device` stores the samples. If it is not the model's device, each batch is copied, and a loader's worker
    process may call `batch`. `tokenizer` is the tokenizer of text samples.
    """

    device: torch.device
    tokenizer: Tokenizer | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored inputs and targets of some samples; `indices` is (batch,) on `device`."""

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return only the targets; a split may override this to avoid reading inputs."""
        return self.batch(indices)[1]

    def prepare(self, inputs: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Convert stored inputs into model inputs, on the model's device; unchanged by default."""
        del augmentation
        return inputs

    def preparation(self) -> dict[str, list[float]]:
        """Return `mean` and `std` of each channel or column, by which inputs are or were scaled.

        For images they are on the scale of the stored bytes; for tables in the columns' original units.
        """
        return {}

    def use_scale(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Scale inputs by this mean and deviation of each channel or column from now on.

        Raises:
            ValueError: if this kind of split cannot.
        """
        del mean, std
        raise ValueError(f"{type(self).__name__} cannot scale its inputs like those of another run")


def digest(split: Split) -> str:
    """Return a short SHA-256 over at most 1,024 evenly spaced samples, to detect changed data."""
    num_seen = min(MOST_DIGESTED, len(split))
    indices = torch.linspace(0, len(split) - 1, num_seen, dtype=torch.float64).long().to(split.device)
    found = hashlib.sha256()
    for tensor in split.batch(indices):
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


class Dataset(Protocol):
    """One data set of the catalogue; created with the `DataOptions` of a configuration."""

    def spec(self) -> DataSpec:
        """Describe the data without loading all of it.

        Raises:
            NotInstalledError: if a required package is missing.
        """
        ...

    def load(self, device: torch.device) -> tuple[Split, Split]:
        """Return the training and the validation split, stored on `device` if possible."""
        ...


class TensorSplit(Split):
    """Samples stored in one tensor, for tables and short texts.

    Args:
        inputs: (samples, …).
        targets: (samples,) class numbers, or floats for regression.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, *, device: torch.device) -> None:
        assert len(inputs) == len(targets)
        self.device = device
        self.inputs = inputs.to(device)
        self.targets = targets.to(device)

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return some samples; integer inputs as `torch.long`."""
        inputs = self.inputs[indices]
        return inputs if inputs.is_floating_point() else inputs.long(), self.targets[indices]

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return (batch,) targets."""
        return self.targets[indices]


class ImageSplit(Split):
    """Images stored as bytes; each batch is augmented and normalised on the model's device.

    Args:
        images: (samples, height, width) or (samples, channels, height, width) uint8.
        labels: (samples,) class numbers.
        mean, std: of the training images, on the scale 0 to 255; one number, or one per channel.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        device: torch.device,
    ) -> None:
        assert images.dtype == torch.uint8 and len(images) == len(labels)
        self.device = device
        self.images = (images if images.dim() == 4 else images.unsqueeze(1)).to(device)
        self.labels = labels.long().to(device)
        self._preparation = ImagePreparation(mean, std)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, channels, height, width) bytes and (batch,) class numbers."""
        # Same result as `[indices]`; ten times as fast on the CPU.
        return self.images.index_select(0, indices), self.labels[indices]

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return (batch,) class numbers."""
        return self.labels[indices]

    def prepare(self, inputs: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Return (batch, channels, height, width) floats."""
        return self._preparation(inputs, augmentation)

    def preparation(self) -> dict[str, list[float]]:
        """Return mean and deviation of each channel."""
        return self._preparation.scale(self.images.shape[1])

    def use_scale(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Normalise by this mean and deviation of each channel from now on."""
        self._preparation = ImagePreparation(mean, std)


class ImagePreparation:
    """Augments a batch of image bytes with flips and crops, and converts it to normalised floats."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self._given = mean, std
        self._mean = torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1)
        self._scale = 1.0 / torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1)

    def scale(self, num_channels: int) -> dict[str, list[float]]:
        """Return `mean` and `std` of each channel."""
        mean, std = (torch.tensor(each).flatten().expand(num_channels).tolist() for each in self._given)
        return {"mean": mean, "std": std}

    def __call__(self, images: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Map (batch, channels, height, width) uint8 to floats of the same shape."""
        if self._mean.device != images.device:
            self._mean, self._scale = self._mean.to(images.device), self._scale.to(images.device)
        if augmentation is not None:
            images = vary(images, augmentation)
        return images.float().sub_(self._mean).mul_(self._scale)


def vary(images: Tensor, augmentation: Augmentation) -> Tensor:
    """Flip and shift each image independently; shifted images are padded by repeating their edge.

    Args:
        images: (batch, channels, height, width).
    """
    batch, _, height, width = images.shape
    device = images.device
    if augmentation.flip:
        flipped = torch.rand(batch, device=device) < 0.5
        images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)
    if reach := augmentation.crop_pixels:
        moves = torch.randint(-reach, reach + 1, (2, batch, 1), device=device)
        rows = (torch.arange(height, device=device) + moves[0]).clamp_(0, height - 1)
        columns = (torch.arange(width, device=device) + moves[1]).clamp_(0, width - 1)
        sample = torch.arange(batch, device=device).view(-1, 1, 1)
        images = images[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return images


def mean_and_std(images: Tensor, *, enabled: bool = True) -> tuple[list[float], list[float]]:
    """Return mean and deviation of image bytes per channel; if disabled, values that scale to 0…1.

    Args:
        images: (samples, height, width) or (samples, channels, height, width) uint8.
    """
    channels = images.shape[1] if images.dim() == 4 else 1
    if not enabled:
        return [0.0] * channels, [255.0] * channels
    values = images.float() if images.dim() == 4 else images.float().unsqueeze(1)
    std = values.std(dim=(0, 2, 3)).clamp_min(1.0)
    return values.mean(dim=(0, 2, 3)).tolist(), std.tolist()


class CharacterSplit(Split):
    """A text split into windows; the target of each token is the next token.

    Args:
        tokens: (length,) token numbers of the whole text.
        sequence_length: tokens per window.
    """

    def __init__(self, tokens: Tensor, *, sequence_length: int, device: torch.device) -> None:
        assert tokens.dim() == 1
        self.device = device
        # Neighbouring windows share one character: the last target of one is the first input of the next.
        self._windows = tokens.to(device).unfold(0, sequence_length + 1, sequence_length)

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, sequence_length) inputs, and targets of the same shape shifted by one token."""
        windows = self._windows[indices].long()
        return windows[:, :-1], windows[:, 1:]


def num_windows(num_characters: int, sequence_length: int) -> int:
    """Return the number of windows of a `CharacterSplit`."""
    return max(0, (num_characters - 1) // sequence_length)
