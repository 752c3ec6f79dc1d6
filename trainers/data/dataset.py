"""What a data set is to the loop: a description, and two splits that give whole batches by index."""

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

MOST_CONFUSED = 20  # classes of which it is told which is taken for which: more fit on no screen
MOST_DIGESTED = 1024
PADDING = 0  # the token that fills up short texts


class NotInstalledError(LookupError):
    """Something optional is not on this machine; the message says how to get it.

    Args:
        watched_paths: the places whose change may mean that it is there now.
        requirement: the pinned package that brings it, as pip takes it; it is data, none of its code is run.
    """

    def __init__(
        self, message: str, watched_paths: Sequence[Path] = (), *, requirement: str | None = None
    ) -> None:
        super().__init__(message)
        self.watched_paths = tuple(watched_paths)
        self.requirement = requirement


class Tokenizer(Protocol):
    """Turns text into numbers and back; token `PADDING` stands for nothing unless `padding` says other."""

    vocabulary_size: int
    padding: int

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return each text's tokens, cut to `max_length`."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What a configuration says about the data; each data set takes what concerns it.

    Attributes:
        path, label_column, task, skip_unreadable, images_path, reading: for a user's own data; see the
            configuration.
        sequence_length: tokens the model sees at once; None: what suits the data set.
        normalise: bring inputs to mean 0 and deviation 1.
        tokenizer: of a trained model that reads this text; None: the data set has its own.
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
        """Return what a configuration says about the data."""
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
    """A column of a table as people wrote it, and the numbers that it becomes.

    Attributes:
        values: of a category, each a number of its own; none for a column of numbers, which is one itself.
        has_other: the rest of the categories share one more.
        has_missing: the last number says that the cell is empty.
    """

    name: str
    values: tuple[str, ...] = ()
    has_other: bool = False
    has_missing: bool = False

    @property
    def width(self) -> int:
        """The number of numbers."""
        return (len(self.values) + self.has_other if self.values else 1) + self.has_missing

    def written(self, numbers: Sequence[float]) -> float | str:
        """Return the cell that became these numbers, in the column's own units."""
        if self.has_missing and numbers[-1] > 0.5:
            return ""
        if not self.values:
            return numbers[0]
        places = [*self.values, *["another"] * self.has_other]
        return next((value for value, is_it in zip(places, numbers, strict=False) if is_it > 0.5), "")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The shape of a data set, enough to build a model for it.

    Attributes:
        task: what is learnt; a model says which tasks it can do.
        input_shape: of one sample: (channels, height, width), (sequence_length,) or (features,).
        num_classes: classes to tell apart, or tokens in the vocabulary; 1 for a number to predict.
        class_names: one name a class, or one character a vocabulary entry; may be empty for tokens.
        num_train, num_validation: samples in each split.
        sample_unit: what one sample is, in plain words ("images").
        description, source: for the page: what it is, where it comes from and under which licence.
        watched_paths: files whose coming or going changes this description.
        vocabulary_size: tokens there are, where inputs are text; else 0.
        padding: the token that fills up short texts.
        decode: turns tokens into text, where `class_names` cannot.
        feature_names: of the numbers that a row of a table becomes.
        columns: of the table as people wrote it, in that order; none where each number is a column.
        target_mean, target_std: what brings a model's numbers back to the target's own scale.
        num_bytes: what the training split takes in memory, where it might be too much for a device.
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
    """How training images are varied; drawn from torch's generator of the device they are on."""

    flip: bool = False
    crop_pixels: int = 0


class Split(ABC):
    """Samples that are picked in whole batches.

    `device` is where they lie. On another device than the model's they are brought over batch by batch,
    and `batch` may be called in a loader's worker process.
    """

    device: torch.device

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored inputs and the targets of these samples; `indices` is (batch,) on `device`."""

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return the targets alone; a split that can do so does not read the inputs."""
        return self.batch(indices)[1]

    def prepare(self, inputs: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Turn stored inputs into what the model takes, on the model's device; nothing by default."""
        del augmentation
        return inputs


def digest(split: Split) -> str:
    """Return a short SHA-256 of what samples spread over a split hold: other data gives another one."""
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
            NotInstalledError: when what it is read from is not on this machine.
        """
        ...

    def load(self, device: torch.device) -> tuple[Split, Split]:
        """Return the training and the validation split, on `device` where the data fits there."""
        ...


class TensorSplit(Split):
    """Samples that are one tensor, as for tables and short texts.

    Args:
        inputs: (samples, …).
        targets: (samples,) of class numbers, or of floats for a number to predict.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, *, device: torch.device) -> None:
        assert len(inputs) == len(targets)
        self.device = device
        self.inputs = inputs.to(device)
        self.targets = targets.to(device)

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples of these numbers; whole numbers as torch's `long`."""
        inputs = self.inputs[indices]
        return inputs if inputs.is_floating_point() else inputs.long(), self.targets[indices]

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return (batch,) targets."""
        return self.targets[indices]


class ImageSplit(Split):
    """Images kept as bytes, and normalised and varied a batch at a time on the model's device.

    Args:
        images: (samples, height, width) or (samples, channels, height, width) uint8.
        labels: (samples,) of class numbers.
        mean, std: of the training images, on the scale of the bytes; one number, or one a channel.
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
        # Picks the same as `[indices]`, on the CPU in a tenth of the time.
        return self.images.index_select(0, indices), self.labels[indices]

    def targets_of(self, indices: Tensor) -> Tensor:
        """Return (batch,) class numbers."""
        return self.labels[indices]

    def prepare(self, inputs: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Return (batch, channels, height, width) floats."""
        return self._preparation(inputs, augmentation)


class ImagePreparation:
    """Makes floats of image bytes, varied by flips and crops, all of a batch at once."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self._mean = torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1)
        self._scale = 1.0 / torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1)

    def __call__(self, images: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        """Map (batch, channels, height, width) uint8 to floats of the same shape."""
        if self._mean.device != images.device:
            self._mean, self._scale = self._mean.to(images.device), self._scale.to(images.device)
        if augmentation is not None:
            images = vary(images, augmentation)
        return images.float().sub_(self._mean).mul_(self._scale)


def vary(images: Tensor, augmentation: Augmentation) -> Tensor:
    """Flip and move each image by its own draw; what is moved in from outside repeats the edge.

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
    """Return what normalises image bytes, a number a channel; not enabled, what only scales them to 0…1.

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
    """A text cut into windows; each character's target is the one after it.

    Args:
        tokens: (characters,) of small whole numbers, the characters' places in the vocabulary.
        sequence_length: characters a window.
    """

    def __init__(self, tokens: Tensor, *, sequence_length: int, device: torch.device) -> None:
        assert tokens.dim() == 1
        self.device = device
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
