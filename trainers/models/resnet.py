"""Residual networks (He et al. 2015, "Deep Residual Learning", table 1), and a slim one for small images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model

# Images of at least this side are halved twice before the first block, as in the paper.
LARGE_IMAGE = 64
LEAST_SIDE = 2


@dataclass(frozen=True)
class Shape:
    """Blocks per stage, channels of the first stage; `is_deep`: bottleneck blocks of three layers."""

    num_blocks: tuple[int, ...]
    width: int = 64
    is_deep: bool = False


SHAPES = {
    "slim": Shape((1, 1, 1), width=16),
    "18": Shape((2, 2, 2, 2)),
    "34": Shape((3, 4, 6, 3)),
    "50": Shape((3, 4, 6, 3), is_deep=True),
}
DEEP_WIDENING = 4


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

    def __init__(self, image_shape: tuple[int, ...], num_classes: int, shape: Shape) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.stem = _stem(channels, shape.width, is_large=min(height, width) >= LARGE_IMAGE)
        blocks: list[nn.Module] = []
        current = shape.width
        side = min(height, width)
        side = -(-side // 4) if side >= LARGE_IMAGE else side
        for stage, num_blocks in enumerate(shape.num_blocks):
            narrow = shape.width * 2**stage
            for number in range(num_blocks):
                # Stop at 2 pixels, because batch norm over one sample of one pixel has no variance.
                stride = 2 if stage > 0 and number == 0 and side > LEAST_SIDE else 1
                side = -(-side // stride)
                wide = narrow * DEEP_WIDENING if shape.is_deep else narrow
                blocks.append(_block(current, narrow, wide, stride, is_deep=shape.is_deep))
                current = wide
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Linear(current, num_classes)
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


def _block(current: int, narrow: int, wide: int, stride: int, *, is_deep: bool) -> nn.Module:
    if is_deep:
        layers = nn.Sequential(
            _convolution(current, narrow, 1),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            _convolution(narrow, narrow, 3, stride),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            _convolution(narrow, wide, 1),
            nn.BatchNorm2d(wide),
        )
    else:
        layers = nn.Sequential(
            _convolution(current, narrow, 3, stride),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            _convolution(narrow, wide, 3),
            nn.BatchNorm2d(wide),
        )
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or current != wide:
        shortcut = nn.Sequential(_convolution(current, wide, 1, stride), nn.BatchNorm2d(wide))
    return Residual(layers, shortcut)


def _convolution(channels: int, width: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel_size=side, stride=stride, padding=side // 2, bias=False)


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
