"""Tabular regression: RMSE, and a sample with the learned curve (1 feature) or validation rows."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import TABULAR_REGRESSION, DataSpec, Split
from trainers.registry import register_task
from trainers.report.metrics import Meter, Trivial, mean
from trainers.report.samples import (
    NUM_POINTS,
    NUM_ROWS,
    Scores,
    in_target_units,
    in_units,
    rows,
    short,
    shorts,
    spread,
    stored,
    value_range,
)
from trainers.report.task import Task

NUM_CURVE_POINTS = 100


@register_task(TABULAR_REGRESSION)
class TabularRegression(Task):
    """Maps (batch, features) floats to (batch, 1) predictions of the standardised target."""

    loss_words: ClassVar[str] = "squared error"
    first_metric: ClassVar[str] = "RMSE"

    def loss(self, scores: Tensor, targets: Tensor, *, reduction: str, label_smoothing: float) -> Tensor:
        del label_smoothing  # only for classes
        return functional.mse_loss(scores.float().flatten(), targets.flatten(), reduction=reduction)

    def meter(self, spec: DataSpec, device: torch.device) -> Meter:
        return RegressionMeter(spec.target_std, device)

    def trivial(self, spec: DataSpec, train: Split, validation: Split) -> Trivial:
        return mean(spec, train, validation)

    def empty_targets(self, spec: DataSpec, batch_size: int, device: torch.device) -> Tensor:
        del spec
        return torch.empty(batch_size, dtype=torch.float32, device=device)

    def sample(
        self,
        scores: Scores,
        spec: DataSpec,
        validation: Split,
        *,
        device: torch.device,
        seed: int,
        time_limit_s: float | None,
    ) -> tuple[str, Any]:
        del seed, time_limit_s
        if spec.input_shape == (1,):
            return "curve", _curve(scores, spec, validation, device)
        return "rows", _predicted_rows(scores, spec, validation, device)


class RegressionMeter(Meter):
    """RMSE and MAE in the target's units, and R² (1: perfect; 0: as good as predicting the mean)."""

    def __init__(self, target_std: float, device: torch.device) -> None:
        self._std = target_std
        super().__init__(4, device)

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        targets = targets.double()
        errors = scores.flatten().double() - targets
        sums += torch.stack(
            [errors.square().sum(), errors.abs().sum(), targets.sum(), targets.square().sum()]
        )

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        squared, absolute, total, total_squared = sums
        spread = total_squared - total * total / count
        return {
            "rmse": self._std * math.sqrt(squared / count),
            "mae": self._std * absolute / count,
            "r2": 1 - squared / spread if spread > 0 else math.nan,
        }


def _curve(scores: Scores, spec: DataSpec, validation: Split, device: torch.device) -> dict[str, Any]:
    """Return predictions over the range of x, and some validation points, in original units."""
    inputs, targets = stored(validation, spread(NUM_POINTS, len(validation)))
    low, high = value_range(inputs)
    x = low + torch.linspace(0, 1, NUM_CURVE_POINTS).unsqueeze(1) * (high - low)
    predicted = scores(validation.prepare(x.to(device))).float().flatten().cpu()
    return {
        "x": shorts(in_units(x, validation)),
        "y": shorts(in_target_units(predicted, spec)),
        "point_x": shorts(in_units(inputs.cpu(), validation)),
        "point_y": shorts(in_target_units(targets.cpu(), spec)),
        "feature_names": list(spec.feature_names),
    }


def _predicted_rows(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> dict[str, Any]:
    """Return some rows: `inputs` (the first columns), and target, prediction and error in original units."""
    inputs, targets = stored(validation, spread(NUM_ROWS, len(validation)))
    predicted = scores(validation.prepare(inputs.to(device))).float().flatten().cpu()
    pairs = torch.stack(
        [in_target_units(targets.cpu(), spec), in_target_units(predicted, spec)], dim=1
    ).tolist()
    answers = [
        {"target": short(target), "prediction": short(prediction), "error": short(prediction - target)}
        for target, prediction in pairs
    ]
    return rows(inputs, answers, spec, validation)
