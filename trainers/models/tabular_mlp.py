"""A multi-layer perceptron for tables, with layer norm and dropout."""

from __future__ import annotations

import math

from torch import nn

from trainers.data import TABULAR_CLASSIFICATION, TABULAR_REGRESSION, DataSpec
from trainers.registry import ModelOptions, register_model

WIDTHS = {"small": 64, "medium": 256, "large": 1024}
DROPOUT = 0.1


@register_model(
    "tabular_mlp",
    label="MLP for tables",
    description="Three dense layers over a table's columns; its decision boundaries are curved, those of "
    "linear are straight.",
    tasks=(TABULAR_CLASSIFICATION, TABULAR_REGRESSION),
    family="dense",
    sizes={"small": "64 wide", "medium": "256 wide", "large": "1,024 wide"},
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Map (batch, features) to (batch, num_classes) scores, or (batch, 1) numbers."""
    width = WIDTHS[options.size or "small"]
    return nn.Sequential(
        nn.Linear(math.prod(spec.input_shape), width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(width, spec.num_classes),
    )
