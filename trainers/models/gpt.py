"""A small GPT: a decoder-only transformer over characters (Radford et al. 2019, pre-norm)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.data import LANGUAGE_MODELLING, DataSpec
from trainers.registry import register_model

NUM_LAYERS = 3
NUM_HEADS = 4
WIDTH = 128


class Block(nn.Module):
    """Attention, then a dense layer of four times the width, each added to what comes in."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.dense_norm = nn.LayerNorm(width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape; a place sees itself and those before it."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.dense(self.dense_norm(x))


class Gpt(nn.Module):
    """Scores for the next character at every place of a text."""

    def __init__(self, vocabulary_size: int, sequence_length: int) -> None:
        super().__init__()
        self.sequence_length = sequence_length
        self.characters = nn.Embedding(vocabulary_size, WIDTH)
        self.places = nn.Embedding(sequence_length, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, NUM_HEADS) for _ in range(NUM_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, vocabulary_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) character numbers to (batch, length, vocabulary) scores."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.characters(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores


@register_model(
    "gpt",
    label="Small GPT",
    description="A three-layer transformer that writes text one character at a time.",
    tasks=(LANGUAGE_MODELLING,),
)
def build(spec: DataSpec) -> nn.Module:
    """Build a GPT for the data set's characters and window length."""
    return Gpt(vocabulary_size=spec.num_classes, sequence_length=spec.input_shape[0])
