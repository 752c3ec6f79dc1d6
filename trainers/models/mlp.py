"""A multi-layer perceptron: three dense layers, the smallest network that learns images well."""

from __future__ import annotations

import math

from torch import nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import register_model

HIDDEN = 256


@register_model(
    "mlp",
    label="MLP",
    description="Three dense layers. Very fast; does not know that pixels have neighbours.",
    tasks=(IMAGE_CLASSIFICATION,),
)
def build(spec: DataSpec) -> nn.Module:
    """Map (batch, *input_shape) to (batch, num_classes) scores."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(spec.input_shape), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, spec.num_classes),
    )
