"""A noisy sine wave for regression, generated with a fixed seed."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.data import TABULAR_REGRESSION, DataOptions, DataSpec
from trainers.data.tables import TableSplit, table_splits, target_scale
from trainers.registry import register_dataset

NUM_TRAIN, NUM_VALIDATION = 2_000, 500
REACH = 6.0  # x is between -REACH and REACH, which is almost two periods
NOISE = 0.15  # standard deviation of y around the wave, which has amplitude 1


@register_dataset("sine", label="Noisy sine wave")
class Sine:
    """One input, one target; the page draws the learned curve."""

    def __init__(self, options: DataOptions) -> None:
        self._normalise = options.normalise

    def spec(self) -> DataSpec:
        """Describe the wave."""
        mean, std = target_scale(points(NUM_TRAIN, seed=0)[1])
        return DataSpec(
            task=TABULAR_REGRESSION,
            input_shape=(1,),
            num_classes=1,
            class_names=(),
            num_train=NUM_TRAIN,
            num_validation=NUM_VALIDATION,
            sample_unit="points",
            description="Points around the curve y = sin x. The model predicts y from x. The noise limits "
            f"the RMSE to at least {NOISE}.",
            source="made by this program",
            feature_names=("x",),
            target_mean=mean,
            target_std=std,
        )

    def load(self, device: torch.device) -> tuple[TableSplit, TableSplit]:
        """Generate the points, always the same; y is standardised."""
        train, validation = points(NUM_TRAIN, seed=0), points(NUM_VALIDATION, seed=1)
        mean, std = target_scale(train[1])
        return table_splits(
            (train[0], (train[1] - mean) / std),
            (validation[0], (validation[1] - mean) / std),
            normalise=self._normalise,
            device=device,
        )


def points(num_points: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return (points, 1) x and (points,) y."""
    generator = torch.Generator().manual_seed(seed)
    x = REACH * (2 * torch.rand(num_points, 1, generator=generator) - 1)
    return x, x.sin().flatten() + NOISE * torch.randn(num_points, generator=generator)
