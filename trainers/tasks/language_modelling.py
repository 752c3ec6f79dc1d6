"""The next token of a text: perplexity, and text that the model writes by itself."""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import LANGUAGE_MODELLING, DataSpec, Split
from trainers.registry import register_task
from trainers.report.metrics import Meter, Task, Trivial, unigram
from trainers.report.samples import Scores, spread, stored, text_of

NUM_CHARACTERS = 240
NUM_TOKENS = 80  # where a token is a piece of a word
TEMPERATURE = 0.8
PROMPT = "\n"


@register_task(LANGUAGE_MODELLING)
class LanguageModelling(Task):
    """(batch, length) tokens to (batch, length, vocabulary) scores of the token that follows each."""

    loss_words: ClassVar[str] = "cross-entropy"
    first_metric: ClassVar[str] = "perplexity"
    is_cut_from_one_text: ClassVar[bool] = True

    def loss(self, scores: Tensor, targets: Tensor, *, reduction: str, label_smoothing: float) -> Tensor:
        return functional.cross_entropy(
            scores.flatten(0, -2), targets.flatten(), reduction=reduction, label_smoothing=label_smoothing
        )

    def meter(self, spec: DataSpec, device: torch.device) -> Meter:
        return LanguageMeter(device, tokens_are_characters=bool(spec.class_names))

    def trivial(self, spec: DataSpec, train: Split, validation: Split) -> Trivial:
        return unigram(spec, train, validation)

    def num_scores(self, spec: DataSpec) -> int:
        return spec.num_classes * spec.input_shape[0]

    def empty_targets(self, spec: DataSpec, batch_size: int, device: torch.device) -> Tensor:
        return torch.empty((batch_size, *spec.input_shape), dtype=torch.int64, device=device)

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
        return "text", _write_text(scores, spec, validation, device, seed, time_limit_s)


class LanguageMeter(Meter):
    """Perplexity and accuracy of the next token; bits per character where a token is one."""

    def __init__(self, device: torch.device, *, tokens_are_characters: bool) -> None:
        self._tokens_are_characters = tokens_are_characters
        super().__init__(1, device)

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        sums[0] += (scores.argmax(-1) == targets).sum()

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        return {"accuracy": sums[0] / count}

    def _of_loss(self, mean_loss: float) -> dict[str, float]:
        name = "bits_per_character" if self._tokens_are_characters else "bits_per_token"
        return {"perplexity": math.exp(min(mean_loss, 700.0)), name: mean_loss / math.log(2)}


def _write_text(
    scores: Scores,
    spec: DataSpec,
    validation: Split,
    device: torch.device,
    seed: int,
    time_limit_s: float | None,
) -> str:
    """Return text the model writes by itself, token by token.

    The model always sees a row of the same length, with what is not written yet behind the place that is
    read: a causal model cannot look there, and one shape is compiled once.
    """
    ends_at = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    generator = torch.Generator().manual_seed(seed)
    num_new = NUM_CHARACTERS if spec.class_names else NUM_TOKENS
    length = min(spec.input_shape[0], num_new)
    if PROMPT in spec.class_names:
        written, start = [spec.class_names.index(PROMPT)], 1
    else:
        written, start = stored(validation, spread(1, len(validation)))[0].flatten()[:1].tolist(), 0
    while len(written) < num_new + start and time.monotonic() < ends_at:
        seen = written[-length:]
        inputs = torch.tensor([seen + [0] * (length - len(seen))], device=device)
        following = scores(validation.prepare(inputs))[0, len(seen) - 1].float().cpu() / TEMPERATURE
        written.append(int(torch.multinomial(following.softmax(-1), 1, generator=generator)))
    return text_of(written[start:], spec)
