"""Trivial predictors: what is reached on a validation split without looking at the inputs.

A verdict on a run compares with them: a model that always predicts the most frequent class of a 95:5 data set
is right in 95% of the cases and has learned nothing. The class and the mean are those of the validation split
itself, so that no constant prediction is ever better than the trivial predictor, whatever the split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.data.dataset import DataSpec, Split

# Counted in about 50 ms; of larger splits a sample spread over them is counted.
MOST_TARGETS = 2**18
FEW_INPUTS = 256
MOST_INPUTS = 2**16
LONGEST_ANSWER = 40


@dataclass(frozen=True, kw_only=True)
class Trivial:
    """A predictor without inputs, on the validation split; the field `trivial` of the `plan` event.

    Attributes:
        predictor: "most_frequent_class", "mean" or "unigram".
        answer: the class or the number that it always predicts; None for a unigram.
        metric: the task's main metric, of which `value` is reached, with its `standard_error`.
        loss: of predicting the frequencies of the classes or tokens, or the mean.
        train_loss: the same on the training split, whose classes or numbers may be spread differently.
        inputs_differ: False if all training inputs are the same.
    """

    predictor: str
    answer: str | float | None
    metric: str
    value: float
    standard_error: float
    loss: float
    train_loss: float
    inputs_differ: bool


def most_frequent_class(spec: DataSpec, train: Split, validation: Split) -> Trivial:
    """Return what always predicting the most frequent class of the validation split reaches.

    Raises:
        ValueError: if no target of a split is a class.
    """
    counts = _class_counts(validation, spec.num_classes)
    trained = _class_counts(train, spec.num_classes)
    shares = counts / counts.sum()
    answer = int(shares.argmax())
    share = float(shares[answer])
    names = spec.class_names
    return Trivial(
        predictor="most_frequent_class",
        answer=(names[answer] if answer < len(names) else str(answer))[:LONGEST_ANSWER],
        metric="accuracy",
        value=share,
        standard_error=math.sqrt(share * (1 - share) / float(counts.sum())),
        loss=float(torch.special.entr(shares).sum()),
        train_loss=float(torch.special.entr(trained / trained.sum()).sum()),
        inputs_differ=inputs_differ(train),
    )


def unigram(spec: DataSpec, train: Split, validation: Split) -> Trivial:
    """Return what predicting each token by its frequency in the training split reaches."""
    trained = _targets(train)
    counts = torch.bincount(trained, minlength=spec.num_classes)
    # One is added to each count, so that no token is impossible.
    shares = (counts + 1).double() / (counts.sum() + len(counts))
    surprise = -shares.log()[_targets(validation)]
    loss = float(surprise.mean())
    perplexity = math.exp(min(loss, 700.0))
    return Trivial(
        predictor="unigram",
        answer=None,
        metric="perplexity",
        value=perplexity,
        standard_error=perplexity * _standard_error(surprise),
        loss=loss,
        train_loss=float(-shares.log()[trained].mean()),
        inputs_differ=inputs_differ(train),
    )


def mean(spec: DataSpec, train: Split, validation: Split) -> Trivial:
    """Return what always predicting the mean of the validation split's targets reaches: an R² of 0."""
    targets = _targets(validation).double()
    average = targets.mean()
    errors = (targets - average).square()
    loss = float(errors.mean())
    rmse = math.sqrt(loss)
    return Trivial(
        predictor="mean",
        answer=float(average) * spec.target_std + spec.target_mean,
        metric="rmse",
        value=rmse * spec.target_std,
        # Of a square root: that of the mean squared error, divided by twice the root.
        standard_error=_standard_error(errors) / (2 * rmse) * spec.target_std if rmse > 0 else 0.0,
        loss=loss,
        train_loss=float(_targets(train).double().var(correction=0)),
        inputs_differ=inputs_differ(train),
    )


def inputs_differ(split: Split) -> bool:
    """Return True if two inputs of a split differ; compares at most 65,536 of them with the first."""
    first: Tensor | None = None
    num_seen = min(MOST_INPUTS, len(split))
    for indices in _spread(split, num_seen).split(FEW_INPUTS):
        inputs = split.batch(indices)[0]
        first = inputs[:1] if first is None else first
        if bool((inputs != first).any()):
            return True
    return False


def _class_counts(split: Split, num_classes: int) -> Tensor:
    """Return how often each class is a target of a split, (classes,) in double precision.

    Raises:
        ValueError: if no target is a class.
    """
    # On the CPU: a GPU would compile a kernel for `entr` (NVRTC), and be waited for at each number.
    counts = torch.histc(_targets(split).cpu().double(), num_classes, -0.5, num_classes - 0.5)
    if not counts.any():
        raise ValueError(f"no target is a class, a whole number from 0 to {num_classes - 1}")
    return counts


def _targets(split: Split) -> Tensor:
    """Return the targets of a split, (targets,); of a large one those of samples spread over it."""
    per_sample = split.targets_of(_spread(split, 1)).numel()
    return split.targets_of(_spread(split, max(1, MOST_TARGETS // per_sample))).flatten()


def _spread(split: Split, most: int) -> Tensor:
    """Return the indices of at most `most` samples spread over a split."""
    num_seen = min(most, len(split))
    if num_seen == len(split):
        return torch.arange(num_seen, device=split.device)
    return torch.linspace(0, len(split) - 1, num_seen, dtype=torch.float64).long().to(split.device)


def _standard_error(values: Tensor) -> float:
    """Return the standard error of a mean; 0 for a single value."""
    return float(values.std(correction=0)) / math.sqrt(len(values))
