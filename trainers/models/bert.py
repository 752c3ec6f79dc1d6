"""BERT-style text classifier (Devlin et al. 2018): a bidirectional transformer encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainers.data import TEXT_CLASSIFICATION, DataSpec
from trainers.models.networks import transformer
from trainers.models.networks.transformer import Block
from trainers.registry import ModelOptions, register_model

# Layers, heads, width.
SHAPES = {"small": (2, 4, 128), "medium": (4, 8, 256), "base": (12, 12, 768)}
DROPOUT = 0.2
# Deviation of the initial embeddings. The embedding of a rare word is hardly trained, so the model can
# memorise texts by its random initial value: accuracy on Austen's novels is 0.64 with the 0.5 of
# `init_transformer`, and 0.72 with 0.1. The few tokens of a character vocabulary are all trained, and learn
# faster from 0.5 (names: 0.73, not 0.70).
WORDS_STD = 0.1
MAX_CHARACTER_VOCABULARY = 1000


class Bert(nn.Module):
    """An encoder whose outputs are averaged over all tokens except padding."""

    def __init__(self, spec: DataSpec, num_layers: int, num_heads: int, width: int) -> None:
        super().__init__()
        self.padding = spec.padding
        self.tokens = nn.Embedding(spec.vocabulary_size, width)
        self.places = nn.Embedding(spec.input_shape[0], width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, is_causal=False, dropout=DROPOUT) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, spec.num_classes)
        transformer.init_transformer(self)
        if spec.vocabulary_size > MAX_CHARACTER_VOCABULARY:
            nn.init.normal_(self.tokens.weight, std=WORDS_STD)
        nn.init.normal_(self.scores.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, classes) scores; padding is masked."""
        mask = tokens != self.padding
        # Always attend to the first position, because a softmax over an empty text would be NaN.
        mask[:, 0] = True
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(positions))
        for block in self.blocks:
            x = block(x, mask[:, None, None, :])
        token_weights = mask.unsqueeze(-1).to(x.dtype)
        mean = (self.norm(x) * token_weights).sum(1) / token_weights.sum(1)
        scores: Tensor = self.scores(mean)
        return scores


@register_model(
    "bert",
    label="BERT-style classifier",
    description="A transformer that classifies a text with attention between all its words.",
    tasks=(TEXT_CLASSIFICATION,),
    family="transformer",
    sizes={
        "small": "2 layers, learns on a laptop",
        "medium": "4 layers",
        "base": "12 layers of width 768: the shape of BERT base",
    },
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build an encoder for the data set's vocabulary and text length."""
    return Bert(spec, *SHAPES[options.size or "small"])
