"""Validation samples for the page."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import DataSpec, Split, TableColumn
from trainers.data.tables import TableSplit

Scores = Callable[[Tensor], Tensor]

NUM_POINTS = 200
NUM_ROWS = 8
NUM_ROW_COLUMNS = 8
MAX_CELL = 40
MAX_IMAGE_BYTES = 4096  # 64 × 64 in grey, 36 × 36 in colour
MARGIN = 0.08  # a plot extends beyond the data by this share of the data's range


def rows(inputs: Tensor, answers: list[dict[str, Any]], spec: DataSpec, validation: Split) -> dict[str, Any]:
    """Return the first columns of some rows as in the source table, each with the model's answer."""
    columns: Sequence[TableColumn] = ()
    if isinstance(validation, TableSplit):
        columns = spec.columns or [TableColumn(name=name) for name in spec.feature_names]
    numbers = in_units(inputs.cpu(), validation).tolist()
    return {
        "columns": [cut(column.name, MAX_CELL) for column in columns[:NUM_ROW_COLUMNS]],
        "rows": [
            {"inputs": _format_row(row, columns[:NUM_ROW_COLUMNS]), **answer}
            for row, answer in zip(numbers, answers, strict=True)
        ],
    }


def _format_row(numbers: Sequence[float], columns: Sequence[TableColumn]) -> list[float | str | None]:
    cells: list[float | str | None] = []
    position = 0
    for column in columns:
        cell = column.written(numbers[position : position + column.width])
        cells.append(cut(cell, MAX_CELL) if isinstance(cell, str) else short(cell))
        position += column.width
    return cells


def classify(scores: Scores, inputs: Tensor, labels: Tensor, spec: DataSpec) -> list[dict[str, Any]]:
    """Return label, prediction and probability of each sample."""
    probabilities, predictions = scores(inputs).float().softmax(-1).max(-1)
    names = spec.class_names
    return [
        {
            "label": cut(names[label], 80),
            "prediction": cut(names[prediction], 80),
            "probability": round(probability, 3),
        }
        for label, prediction, probability in zip(
            labels.tolist(), predictions.tolist(), probabilities.tolist(), strict=True
        )
    ]


def thumbnails(images: Tensor, white: float | None = None) -> Tensor:
    """Return thumbnails of (samples, channels, height, width) images: at most 4 kB each, values 0 to 255.

    Args:
        white: the pixel value of white; None: the largest of these images, because data sets have different
            ranges (digits: 0 to 16).
    """
    pixels = images.float()
    if pixels.shape[1] != 3:
        pixels = pixels.mean(dim=1, keepdim=True)
    size = pixels[0].numel()
    if size > MAX_IMAGE_BYTES:
        pixels = functional.avg_pool2d(pixels, math.ceil(math.sqrt(size / MAX_IMAGE_BYTES)), ceil_mode=True)
    max_pixel = max(1.0, float(pixels.max())) if white is None else white
    return (pixels * (255.0 / max_pixel)).clamp(0, 255)


def spread(max_samples: int, num_samples: int) -> Tensor:
    """Return evenly spaced sample indices, because some validation splits are sorted by class."""
    num_spread = min(max_samples, num_samples)
    return torch.arange(num_spread) * num_samples // max(1, num_spread)


def stored(validation: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the stored inputs and the targets of these samples."""
    return validation.batch(indices.to(validation.device))


def value_range(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of each column, extended by a margin, on the CPU."""
    low, high = inputs.min(dim=0).values.cpu(), inputs.max(dim=0).values.cpu()
    margin = (high - low).clamp_min(1e-6) * MARGIN
    return low - margin, high + margin


def in_units(inputs: Tensor, validation: Split) -> Tensor:
    """Convert inputs on the CPU back to the columns' original units, if the split knows them."""
    if isinstance(validation, TableSplit):
        return inputs * validation.feature_std + validation.feature_mean
    return inputs


def in_target_units(targets: Tensor, spec: DataSpec) -> Tensor:
    """Convert standardised numbers back to the target's original scale."""
    return targets * spec.target_std + spec.target_mean


def text_of(tokens: Sequence[int], spec: DataSpec) -> str:
    """Return the text of some tokens."""
    if spec.decode is not None:
        return spec.decode(tokens)
    return "".join(spec.class_names[token] for token in tokens)


def cut(text: str, length: int) -> str:
    """Return a text shortened to at most this length."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def short(value: float) -> float:
    """Round to four significant digits, enough for a chart."""
    return float(f"{value:.4g}")


def shorts(values: Tensor) -> list[float]:
    """Round each value to four significant digits."""
    return [short(value) for value in values.flatten().tolist()]


def as_base64(values: Tensor) -> str:
    """Return values from 0 to 255 as base64 of one byte each."""
    return base64.b64encode(bytes(values.flatten().to(torch.uint8).tolist())).decode("ascii")
