"""Text classification: accuracy, and a sample of validation texts with predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainers.data.dataset import TEXT_CLASSIFICATION, DataSpec, Split
from trainers.registry import register_task
from trainers.report.samples import Scores, classify, cut, spread, stored, text_of
from trainers.report.task import Classification

NUM_TEXTS = 6
MAX_TEXT_CHARACTERS = 160


@register_task(TEXT_CLASSIFICATION)
class TextClassification(Classification):
    """Maps (batch, length) tokens to (batch, classes) scores."""

    def sample(
        self,
        scores: Scores,
        spec: DataSpec,
        validation: Split,
        *,
        device: torch.device,
        seed: int,
        time_limit_s: float | None,
    ) -> tuple[str, Any]:
        del seed, time_limit_s
        return "texts", _predict_texts(scores, spec, validation, device)


def _predict_texts(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> list[dict[str, Any]]:
    """Return the truncated text, label, prediction and probability of some samples."""
    indices = spread(NUM_TEXTS, len(validation))
    tokens, labels = stored(validation, indices)
    answers = classify(scores, validation.prepare(tokens.to(device)), labels, spec)
    stored_texts: Sequence[str] | None = getattr(validation, "texts", None)
    texts = (
        [stored_texts[index] for index in indices.tolist()]
        if stored_texts is not None
        else [text_of([token for token in row if token != spec.padding], spec) for row in tokens.tolist()]
    )
    return [
        {"text": cut(text, MAX_TEXT_CHARACTERS), **answer}
        for text, answer in zip(texts, answers, strict=True)
    ]
