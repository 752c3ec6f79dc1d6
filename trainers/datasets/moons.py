"""Two interleaving half moons, generated with a fixed seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainers.data import TABULAR_CLASSIFICATION, DataOptions, DataSpec
from trainers.data.tables import TableSplit, table_splits
from trainers.registry import register_dataset

NUM_TRAIN, NUM_VALIDATION = 2_000, 500
NOISE = 0.15  # standard deviation around a moon of radius 1


@register_dataset("moons", label="Two moons")
class Moons:
    """Points of two half circles in a plane; the page draws the decision surface."""

    def __init__(self, options: DataOptions) -> None:
        self._normalise = options.normalise

    def spec(self) -> DataSpec:
        """Describe the points."""
        return DataSpec(
            task=TABULAR_CLASSIFICATION,
            input_shape=(2,),
            num_classes=2,
            class_names=("upper moon", "lower moon"),
            num_train=NUM_TRAIN,
            num_validation=NUM_VALIDATION,
            sample_unit="points",
            description="Points in two half moons that reach into each other. A straight line separates "
            "most of them correctly, a curved boundary nearly all.",
            source="made by this program",
            feature_names=("x", "y"),
        )

    def load(self, device: torch.device) -> tuple[TableSplit, TableSplit]:
        """Generate the points, always the same."""
        return table_splits(
            points(NUM_TRAIN, seed=0),
            points(NUM_VALIDATION, seed=1),
            normalise=self._normalise,
            device=device,
        )


def points(num_points: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return (points, 2) coordinates and (points,) classes, upper and lower moon alternating."""
    generator = torch.Generator().manual_seed(seed)
    moons = torch.arange(num_points) % 2
    angle = math.pi * torch.rand(num_points, generator=generator)
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
    positions = torch.where(moons[:, None] == 0, upper, lower)
    return positions + NOISE * torch.randn(num_points, 2, generator=generator), moons
