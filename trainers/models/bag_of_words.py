"""Bag of words: a linear classifier on the mean word embedding (Joulin et al. 2016, "fastText")."""

from __future__ import annotations

from torch import Tensor, nn

from trainers.data import TEXT_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model

WIDTHS = {"small": 64, "large": 256}


class BagOfWords(nn.Module):
    """Uses the words of a text, but not their order."""

    def __init__(self, spec: DataSpec, width: int) -> None:
        super().__init__()
        self.padding = spec.padding
        self.words = nn.Embedding(spec.vocabulary_size, width)
        self.scores = nn.Linear(width, spec.num_classes)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, classes) scores; padding is ignored."""
        vectors = self.words(tokens)
        mask = (tokens != self.padding).unsqueeze(-1).to(vectors.dtype)
        mean = (vectors * mask).sum(1) / mask.sum(1).clamp_min(1)
        scores: Tensor = self.scores(mean)
        return scores


@register_model(
    "bag_of_words",
    label="Bag of words",
    description="Uses the words of a text, but not their order. Very fast, and hard to beat on long texts.",
    tasks=(TEXT_CLASSIFICATION,),
    family="dense",
    sizes={"small": "64 numbers a word", "large": "256 numbers a word"},
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a bag of words for the data set's vocabulary."""
    return BagOfWords(spec, WIDTHS[options.size or "small"])
