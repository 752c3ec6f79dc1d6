"""Tabular classification: accuracy; as a sample the decision surface (2 features) or validation rows."""

from __future__ import annotations

from typing import Any

import torch

from trainers.data.dataset import TABULAR_CLASSIFICATION, DataSpec, Split
from trainers.registry import register_task
from trainers.report.samples import (
    NUM_POINTS,
    NUM_ROWS,
    Scores,
    as_base64,
    classify,
    cut,
    in_units,
    rows,
    short,
    spread,
    stored,
    value_range,
)
from trainers.report.task import Classification

GRID = 48  # cells per side of the decision surface
MAX_SURFACE_CLASSES = 7  # the number of colours on the page


@register_task(TABULAR_CLASSIFICATION)
class TabularClassification(Classification):
    """Maps (batch, features) floats to (batch, classes) scores."""

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
        if spec.input_shape == (2,) and spec.num_classes <= MAX_SURFACE_CLASSES:
            return "surface", _surface(scores, spec, validation, device)
        return "rows", _classified_rows(scores, spec, validation, device)


def _surface(scores: Scores, spec: DataSpec, validation: Split, device: torch.device) -> dict[str, Any]:
    """Return the decision surface over two features, and some validation points.

    `predictions` and `confidence` are base64 of size × size bytes, top row first; a confidence of 255 is a
    probability of 1. `points` is base64 of three bytes per point: x and y, scaled from their range to 0 to
    255, and the class. The ranges are in the columns' original units.
    """
    inputs, labels = stored(validation, spread(NUM_POINTS, len(validation)))
    low, high = value_range(inputs)
    across = torch.linspace(0, 1, GRID)
    points = torch.cartesian_prod(across.flip(0), across).flip(1)  # (x, y), row by row from the top
    probabilities = scores(validation.prepare((low + points * (high - low)).to(device))).float().softmax(-1)
    confidence, predictions = probabilities.max(-1)
    relative = ((inputs.cpu() - low) / (high - low) * 255).round().clamp(0, 255)
    ranges = torch.stack([in_units(low, validation), in_units(high, validation)], dim=1)
    return {
        "size": GRID,
        "predictions": as_base64(predictions),
        "confidence": as_base64((confidence.nan_to_num(0.0) * 255).round()),
        "points": as_base64(torch.cat([relative, labels.cpu().unsqueeze(1)], dim=1)),
        "x_range": [short(value) for value in ranges[0].tolist()],
        "y_range": [short(value) for value in ranges[1].tolist()],
        "feature_names": list(spec.feature_names),
        "class_names": [cut(name, 40) for name in spec.class_names],
    }


def _classified_rows(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> dict[str, Any]:
    """Return some rows: `inputs` (the first columns), label, prediction and probability."""
    inputs, labels = stored(validation, spread(NUM_ROWS, len(validation)))
    answers = classify(scores, validation.prepare(inputs.to(device)), labels, spec)
    return rows(inputs, answers, spec, validation)
