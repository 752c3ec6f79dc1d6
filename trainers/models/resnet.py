"""Residual networks (He et al. 2015, "Deep Residual Learning", table 1), and a slim one for small images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model

# Images of at least this side are halved twice before the first block, as in the paper.
LARGE_IMAGE_SIDE = 64
MIN_SIDE = 2


@dataclass(frozen=True)
class ResnetShape:
    """Blocks per stage, channels of the first stage; `is_deep`: bottleneck blocks of three layers."""

    num_blocks: tuple[int, ...]
    width: int = 64
    is_deep: bool = False


SHAPES = {
    "slim": ResnetShape((1, 1, 1), width=16),
    "18": ResnetShape((2, 2, 2, 2)),
    "34": ResnetShape((3, 4, 6, 3)),
    "50": ResnetShape((3, 4, 6, 3), is_deep=True),
}
BOTTLENECK_EXPANSION = 4


class Residual(nn.Module):
    """Adds a shortcut from the input to the output of some layers; it projects if the shapes differ."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the block's output."""
        out: Tensor = self.relu(self.layers(x) + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """Stages of residual blocks; each later stage doubles the channels and halves the image, to 2 pixels."""

    def __init__(self, image_shape: tuple[int, ...], num_classes: int, shape: ResnetShape) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.stem = _stem(channels, shape.width, is_large=min(height, width) >= LARGE_IMAGE_SIDE)
        blocks: list[nn.Module] = []
        in_channels = shape.width
        side = min(height, width)
        side = -(-side // 4) if side >= LARGE_IMAGE_SIDE else side
        for stage, num_blocks in enumerate(shape.num_blocks):
            mid_channels = shape.width * 2**stage
            for block_index in range(num_blocks):
                # Stop at 2 pixels, because batch norm over one sample of one pixel has no variance.
                stride = 2 if stage > 0 and block_index == 0 and side > MIN_SIDE else 1
                side = -(-side // stride)
                out_channels = mid_channels * BOTTLENECK_EXPANSION if shape.is_deep else mid_channels
                blocks.append(_block(in_channels, mid_channels, out_channels, stride, is_deep=shape.is_deep))
                in_channels = out_channels
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Linear(in_channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, classes) scores."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.pool(x).flatten(1))
        return scores


def _stem(channels: int, width: int, *, is_large: bool) -> nn.Module:
    if is_large:
        return nn.Sequential(
            nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            nn.ReLU(),  # after pooling, with the same result and a quarter of the values
        )
    return nn.Sequential(_convolution(channels, width, 3), nn.BatchNorm2d(width), nn.ReLU())


def _block(
    in_channels: int, mid_channels: int, out_channels: int, stride: int, *, is_deep: bool
) -> nn.Module:
    if is_deep:
        layers = nn.Sequential(
            _convolution(in_channels, mid_channels, 1),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(),
            _convolution(mid_channels, mid_channels, 3, stride),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(),
            _convolution(mid_channels, out_channels, 1),
            nn.BatchNorm2d(out_channels),
        )
    else:
        layers = nn.Sequential(
            _convolution(in_channels, mid_channels, 3, stride),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(),
            _convolution(mid_channels, out_channels, 3),
            nn.BatchNorm2d(out_channels),
        )
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or in_channels != out_channels:
        shortcut = nn.Sequential(
            _convolution(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
        )
    return Residual(layers, shortcut)


def _convolution(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size=kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        bias=False,
    )


@register_model(
    "resnet",
    label="ResNet",
    description="Many convolutions with shortcuts around them: the classic of image recognition.",
    tasks=(IMAGE_CLASSIFICATION,),
    family="convolution",
    sizes={
        "slim": "3 blocks, learns on a laptop",
        "18": "18 layers",
        "34": "34 layers",
        "50": "50 layers, for a GPU",
    },
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a residual network; images below 64 pixels are not halved at the start."""
    return ResNet(spec.input_shape, spec.num_classes, SHAPES[options.size or "slim"])
