"""Vision transformer (Dosovitskiy et al. 2020): an image is a sequence of square patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.models.networks import transformer
from trainers.models.networks.transformer import Block
from trainers.registry import ModelOptions, register_model

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

# Layers, heads, width.
SHAPES = {"tiny": (4, 4, 64), "small": (6, 4, 192), "base": (12, 12, 768)}
PATCHES_PER_SIDE = 7
MIN_PATCH_SIDE = 2  # pixels: 64 patches of one pixel cost three times as much as 16 patches of 2 × 2


class Vit(nn.Module):
    """Splits an image into patches, applies a transformer to them, and averages its outputs."""

    def __init__(
        self, image_shape: tuple[int, ...], num_classes: int, num_layers: int, num_heads: int, width: int
    ) -> None:
        super().__init__()
        channels, height, image_width = image_shape
        self.side = max(MIN_PATCH_SIDE, round(max(height, image_width) / PATCHES_PER_SIDE))
        rows, columns = -(-height // self.side), -(-image_width // self.side)
        self.squares = nn.Conv2d(channels, width, kernel_size=self.side, stride=self.side)
        self.places = nn.Parameter(torch.empty(rows * columns, width))
        self.blocks = nn.ModuleList(Block(width, num_heads, is_causal=False) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_classes)
        transformer.init_transformer(self)
        nn.init.normal_(self.places, std=0.5)
        nn.init.normal_(self.scores.weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, classes) scores."""
        height, width = images.shape[-2:]
        # Pad at the right and the bottom to whole patches.
        images = functional.pad(images, (0, -width % self.side, 0, -height % self.side))
        x = self.squares(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.norm(x).mean(1))
        return scores

    def tensor_parallel_plan(self) -> dict[str, ParallelStyle]:
        """Return how each layer is split over the ranks."""
        return transformer.tensor_parallel_plan(self.blocks)


@register_model(
    "vit",
    label="Vision transformer",
    description="Cuts the image into squares that attend to each other, as letters do in a GPT.",
    tasks=(IMAGE_CLASSIFICATION,),
    family="transformer",
    sizes={
        "tiny": "4 layers, learns on a laptop",
        "small": "6 layers, for a GPU",
        "base": "12 layers of width 768",
    },
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a vision transformer whose patch side is 1/7 of the image's longer side, at least 2 pixels."""
    return Vit(spec.input_shape, spec.num_classes, *SHAPES[options.size or "tiny"])
