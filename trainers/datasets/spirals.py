"""Three spiral arms in a plane, generated with a fixed seed; not linearly separable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainers.data import TABULAR_CLASSIFICATION, DataOptions, DataSpec
from trainers.data.tables import TableSplit, table_splits
from trainers.registry import register_dataset

NUM_TRAIN, NUM_VALIDATION = 2_001, 501
NUM_ARMS = 3
TURNS = 1.25
NOISE = 0.025  # standard deviation around an arm; arms extend to radius 1


@register_dataset("spirals", label="Three spirals")
class Spirals:
    """Points on three spiral arms in a plane; the page draws the decision surface."""

    def __init__(self, options: DataOptions) -> None:
        self._normalise = options.normalise

    def spec(self) -> DataSpec:
        """Describe the points."""
        return DataSpec(
            task=TABULAR_CLASSIFICATION,
            input_shape=(2,),
            num_classes=NUM_ARMS,
            class_names=("first arm", "second arm", "third arm"),
            num_train=NUM_TRAIN,
            num_validation=NUM_VALIDATION,
            sample_unit="points",
            description="Points on three interleaved spiral arms, which a straight line cannot separate. "
            "Shows how the decision boundary forms.",
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
    """Return (points, 2) coordinates and (points,) classes; the arms alternate."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.arange(num_points) % NUM_ARMS
    # The square root distributes points evenly along an arm.
    radius = torch.rand(num_points, generator=generator).sqrt() * 0.95 + 0.05
    angle = 2 * math.pi * (TURNS * radius + arms / NUM_ARMS)
    positions = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return positions + NOISE * torch.randn(num_points, 2, generator=generator), arms
