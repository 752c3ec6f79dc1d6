"""GPT: a decoder-only transformer language model with pre-norm blocks (Radford et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainers.data import LANGUAGE_MODELLING, DataSpec
from trainers.models.networks import transformer
from trainers.models.networks.transformer import Block
from trainers.registry import ModelOptions, register_model

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True)
class Shape:
    """Depth, number of heads and width of a transformer."""

    num_layers: int
    num_heads: int
    width: int


SHAPES = {
    "small": Shape(2, 4, 128),
    "medium": Shape(6, 6, 384),
    "124m": Shape(12, 12, 768),
}


class Gpt(nn.Module):
    """A causal language model: scores for the next token at each position."""

    def __init__(self, vocabulary_size: int, sequence_length: int, shape: Shape) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary_size, sequence_length, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.num_heads, is_causal=True) for _ in range(shape.num_layers)
        )
        self.head = Head(shape.width, vocabulary_size)
        transformer.init_transformer(self)
        nn.init.normal_(self.head.scores.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, length, vocabulary) scores."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores

    def tensor_parallel_plan(self) -> dict[str, ParallelStyle]:
        """Return how each layer is split over the ranks."""
        return transformer.tensor_parallel_plan(self.blocks)

    def pipeline_stages(self, num_stages: int) -> list[nn.Module]:
        """Split the network into consecutive stages that share its layers.

        Raises:
            ValueError: if there are fewer blocks than stages.
        """
        if num_stages > len(self.blocks):
            raise ValueError(f"the model has {len(self.blocks)} blocks, which limits the number of stages")
        stages: list[nn.Module] = []
        for stage in range(num_stages):
            first, end = (len(self.blocks) * boundary // num_stages for boundary in (stage, stage + 1))
            parts: list[nn.Module] = [*self.blocks[first:end]]
            if stage == 0:
                parts.insert(0, self.embedding)
            if stage == num_stages - 1:
                parts.append(self.head)
            stages.append(nn.Sequential(*parts))
        return stages


class Embedding(nn.Module):
    """Sum of a token embedding and a position embedding."""

    def __init__(self, vocabulary_size: int, sequence_length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.places = nn.Embedding(sequence_length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, length, width)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.tokens(tokens) + self.places(positions)
        return embedded


class Head(nn.Module):
    """Final norm and projection to the vocabulary."""

    def __init__(self, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, length, vocabulary)."""
        scores: Tensor = self.scores(self.norm(x))
        return scores


@register_model(
    "gpt",
    label="GPT",
    description="A transformer that writes text, one token after the other.",
    tasks=(LANGUAGE_MODELLING,),
    family="transformer",
    sizes={
        "small": "2 layers, learns on a laptop",
        "medium": "6 layers, for a GPU",
        "124m": "12 layers of width 768: the shape of GPT-2",
    },
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a GPT for the data set's vocabulary and window length."""
    return Gpt(spec.num_classes, spec.input_shape[0], SHAPES[options.size or "small"])
