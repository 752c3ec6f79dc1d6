"""A small GPT: a decoder-only transformer over characters (Radford et al. 2019, pre-norm)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.data import LANGUAGE_MODELLING, DataSpec
from trainers.registry import register_model

NUM_LAYERS = 2
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
        self.dense_in = nn.Linear(width, 4 * width, bias=False)
        self.dense_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape; a place sees itself and those before it."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        widened: Tensor = self.dense_out(functional.gelu(self.dense_in(self.dense_norm(x))))
        return x + widened


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
        self._init_weights()

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) character numbers to (batch, length, vocabulary) scores."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.characters(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores

    def _init_weights(self) -> None:
        """Scale by fan-in, and let every block begin as the identity (Zhang et al. 2019, "Fixup").

        With the usual 0.02 everywhere a network this narrow sits at the letters' frequencies for
        hundreds of steps before it learns anything of their order.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.5)
        for block in self.blocks:
            assert isinstance(block, Block)
            nn.init.zeros_(block.attention_out.weight)
            nn.init.zeros_(block.dense_out.weight)
        nn.init.normal_(self.scores.weight, std=0.02)


@register_model(
    "gpt",
    label="Small GPT",
    description="A two-layer transformer that writes text one character at a time.",
    tasks=(LANGUAGE_MODELLING,),
)
def build(spec: DataSpec) -> nn.Module:
    """Build a GPT for the data set's characters and window length."""
    return Gpt(vocabulary_size=spec.num_classes, sequence_length=spec.input_shape[0])
