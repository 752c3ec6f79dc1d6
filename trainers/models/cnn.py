"""A small convolutional network similar to LeNet-5 (LeCun et al. 1998)."""

from __future__ import annotations

from torch import nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model

# Channels of the two convolutions, width of the hidden dense layer.
WIDTHS = {"small": (16, 32, 128), "medium": (32, 64, 256), "large": (64, 128, 512)}
# Feature maps with a longer side are pooled to this side before the dense layer.
MAX_GRID_SIDE = 16


@register_model(
    "cnn",
    label="Small CNN",
    description="Two convolutions, then two dense layers. Recognises shapes anywhere in the image.",
    tasks=(IMAGE_CLASSIFICATION,),
    family="convolution",
    sizes={
        "small": "16 and 32 channels",
        "medium": "32 and 64 channels",
        "large": "64 and 128 channels",
    },
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Map (batch, channels, height, width) to (batch, num_classes) scores."""
    channels, height, width = spec.input_shape
    channels_1, channels_2, hidden = WIDTHS[options.size or "small"]
    # Two poolings, which round up for sides below 4 pixels, because otherwise no pixel would remain.
    rounds_up = min(height, width) < 4
    rows, columns = (-(-side // 4) if rounds_up else side // 4 for side in (height, width))
    pooling: list[nn.Module] = []
    if rows > MAX_GRID_SIDE or columns > MAX_GRID_SIDE:
        pooling.append(_pool_to_grid((rows, columns)))
        rows, columns = min(rows, MAX_GRID_SIDE), min(columns, MAX_GRID_SIDE)
    # ReLU after pooling gives the same result as before pooling, with a quarter of the values.
    return nn.Sequential(
        nn.Conv2d(channels, channels_1, kernel_size=3, padding=1),
        nn.MaxPool2d(2, ceil_mode=rounds_up),
        nn.ReLU(),
        nn.Conv2d(channels_1, channels_2, kernel_size=3, padding=1),
        nn.MaxPool2d(2, ceil_mode=rounds_up),
        nn.ReLU(),
        *pooling,
        nn.Flatten(),
        nn.Linear(channels_2 * rows * columns, hidden),
        nn.ReLU(),
        nn.Linear(hidden, spec.num_classes),
    )


def _pool_to_grid(sides: tuple[int, int]) -> nn.Module:
    grid = (min(sides[0], MAX_GRID_SIDE), min(sides[1], MAX_GRID_SIDE))
    if sides[0] % grid[0] == 0 and sides[1] % grid[1] == 0:
        # Same result as adaptive pooling, but with a deterministic backward on GPUs.
        return nn.AvgPool2d((sides[0] // grid[0], sides[1] // grid[1]))
    return nn.AdaptiveAvgPool2d(grid)
