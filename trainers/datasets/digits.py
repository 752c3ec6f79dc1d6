"""Handwritten digits, 8 × 8 pixels (UCI Optical Recognition of Handwritten Digits, test part).

The file is that of scikit-learn's `sklearn.datasets.load_digits`.
"""

from __future__ import annotations

import gzip

import torch

from trainers.data import ASSETS_DATA, IMAGE_CLASSIFICATION, DataOptions, DataSpec, ImageSplit, mean_and_std
from trainers.registry import register_dataset

FILE = ASSETS_DATA / "digits.csv.gz"
NUM_SAMPLES = 1_797
NUM_TRAIN = 1_437
SIDE = 8


@register_dataset("digits", label="Handwritten digits")
class Digits:
    """1,797 handwritten digits; a model learns them in seconds."""

    def __init__(self, options: DataOptions) -> None:
        self._normalise = options.normalise

    def spec(self) -> DataSpec:
        """Describe the digits."""
        return DataSpec(
            task=IMAGE_CLASSIFICATION,
            input_shape=(1, SIDE, SIDE),
            num_classes=10,
            class_names=tuple(str(digit) for digit in range(10)),
            num_train=NUM_TRAIN,
            num_validation=NUM_SAMPLES - NUM_TRAIN,
            sample_unit="images",
            description="Handwritten digits of 8 × 8 pixels: 1,437 to train, 360 to validate. "
            "A model learns them in seconds.",
            source="UCI / scikit-learn, CC BY 4.0",
        )

    def load(self, device: torch.device) -> tuple[ImageSplit, ImageSplit]:
        """Read the digits in a fixed random order, because neighbours in the file are by the same writer."""
        rows = [line.split(",") for line in gzip.decompress(FILE.read_bytes()).decode("ascii").splitlines()]
        table = torch.tensor([[int(float(cell)) for cell in row] for row in rows], dtype=torch.uint8)
        assert table.shape == (NUM_SAMPLES, SIDE * SIDE + 1)
        table = table[torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(0))]
        images, labels = table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1]
        mean, std = mean_and_std(images[:NUM_TRAIN], enabled=self._normalise)
        return (
            ImageSplit(images[:NUM_TRAIN], labels[:NUM_TRAIN], mean=mean, std=std, device=device),
            ImageSplit(images[NUM_TRAIN:], labels[NUM_TRAIN:], mean=mean, std=std, device=device),
        )
