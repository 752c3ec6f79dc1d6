"""A multi-layer perceptron of three dense layers, the smallest network that learns images well."""

from __future__ import annotations

import math

from torch import nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model

WIDTHS = {"medium": 256, "small": 64, "large": 1024}


@register_model(
    "mlp",
    label="MLP",
    description="Three dense layers. Very fast; does not know that pixels have neighbours.",
    tasks=(IMAGE_CLASSIFICATION,),
    family="dense",
    sizes={"medium": "256 wide", "small": "64 wide", "large": "1,024 wide"},
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Map (batch, *input_shape) to (batch, num_classes) scores."""
    width = WIDTHS[options.size or "medium"]
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(spec.input_shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, spec.num_classes),
    )
