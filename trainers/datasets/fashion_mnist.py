"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747; MIT licence).

The repository contains its t10k part of 10,000 images. If Debian's package `dataset-fashion-mnist` is
installed, all 70,000 images are used: 60,000 for training, the t10k part for validation.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor

from trainers.data import ASSETS_DATA, IMAGE_CLASSIFICATION, DataOptions, DataSpec, ImageSplit, mean_and_std
from trainers.registry import register_dataset

BUNDLED = ASSETS_DATA / "fashion_mnist_t10k"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
CLASS_NAMES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
NUM_BUNDLED_TRAIN = 8_000


@register_dataset("fashion_mnist", label="Fashion-MNIST")
class FashionMnist:
    """Photographs of clothes, 28 × 28 pixels, ten kinds."""

    def __init__(self, options: DataOptions, installed: Path = INSTALLED) -> None:
        self._normalise = options.normalise
        self._installed = installed
        self._is_full = (installed / "train-images-idx3-ubyte.gz").is_file()

    def spec(self) -> DataSpec:
        """Describe the part that is available on this machine."""
        part = (
            "The full set: 60,000 images to train, 10,000 to validate."
            if self._is_full
            else "The bundled part (t10k): 8,000 images to train, 2,000 to validate. "
            "Install the Debian package dataset-fashion-mnist for all 70,000."
        )
        return DataSpec(
            task=IMAGE_CLASSIFICATION,
            input_shape=(1, 28, 28),
            num_classes=10,
            class_names=CLASS_NAMES,
            num_train=60_000 if self._is_full else NUM_BUNDLED_TRAIN,
            num_validation=10_000 if self._is_full else 10_000 - NUM_BUNDLED_TRAIN,
            sample_unit="images",
            description=f"Photographs of clothes, ten kinds. {part}",
            source="Zalando Research, MIT licence",
            watched_paths=(self._installed / "train-images-idx3-ubyte.gz",),
        )

    def load(self, device: torch.device) -> tuple[ImageSplit, ImageSplit]:
        """Read the images; normalised with mean and deviation of the training part."""
        if self._is_full:
            train = read_pair(self._installed, "train")
            validation = read_pair(self._installed, "t10k")
        else:
            images, labels = read_pair(BUNDLED, "t10k")
            train = images[:NUM_BUNDLED_TRAIN], labels[:NUM_BUNDLED_TRAIN]
            validation = images[NUM_BUNDLED_TRAIN:], labels[NUM_BUNDLED_TRAIN:]
        mean, std = mean_and_std(train[0][:8_000], enabled=self._normalise)
        return (
            ImageSplit(*train, mean=mean, std=std, device=device),
            ImageSplit(*validation, mean=mean, std=std, device=device),
        )


def read_pair(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return the images (samples, height, width) and labels (samples,) of one part."""
    return read_idx(folder / f"{part}-images-idx3-ubyte.gz"), read_idx(
        folder / f"{part}-labels-idx1-ubyte.gz"
    )


def read_idx(path: Path) -> Tensor:
    """Read a gzipped idx file of bytes (format: http://yann.lecun.com/exdb/mnist, "the IDX file format").

    Raises:
        ValueError: if the file has another format or is truncated.
    """
    raw = bytearray(gzip.decompress(path.read_bytes()))
    zeros, kind, num_dimensions = struct.unpack(">HBB", raw[:4])
    if zeros != 0 or kind != 0x08:
        raise ValueError(f"{path} is not an idx file of bytes")
    header = 4 + 4 * num_dimensions
    shape = struct.unpack(f">{num_dimensions}I", raw[4:header])
    values = torch.frombuffer(raw, dtype=torch.uint8, offset=header)
    if values.numel() != torch.Size(shape).numel():
        raise ValueError(f"{path} contains {values.numel()} bytes, but its header declares {shape}")
    return values.reshape(shape)
