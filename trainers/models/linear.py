"""One dense layer: softmax regression for classes, linear regression for a number."""

from __future__ import annotations

import math

from torch import nn

from trainers.data import IMAGE_CLASSIFICATION, TABULAR_CLASSIFICATION, TABULAR_REGRESSION, DataSpec
from trainers.registry import ModelOptions, register_model


@register_model(
    "linear",
    label="Linear",
    description="One dense layer: the simplest model, and the baseline for all others.",
    tasks=(IMAGE_CLASSIFICATION, TABULAR_CLASSIFICATION, TABULAR_REGRESSION),
    family="linear",
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Map (batch, *input_shape) to (batch, num_classes) scores, or (batch, 1) numbers."""
    del options
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(spec.input_shape), spec.num_classes))
