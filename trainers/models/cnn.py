"""A small convolutional network in the manner of LeNet-5 (LeCun et al. 1998)."""

from __future__ import annotations

from torch import nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import register_model

WIDTHS = (16, 32)
HIDDEN = 128


@register_model(
    "cnn",
    label="Small CNN",
    description="Two convolutions, then two dense layers. Sees shapes wherever they are in the image.",
    tasks=(IMAGE_CLASSIFICATION,),
)
def build(spec: DataSpec) -> nn.Module:
    """Map (batch, channels, height, width) to (batch, num_classes) scores."""
    channels, height, width = spec.input_shape
    first, second = WIDTHS
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, spec.num_classes),
    )
