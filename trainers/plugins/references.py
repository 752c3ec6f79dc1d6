"""Fits a baseline for a run and prints it as JSON: logistic regression or least squares.

    python -m trainers.plugins.references < config.json

The page starts this program with a run's configuration on stdin. It fits the training split of the run and
evaluates on the same validation split. Inputs are tables, small images, and texts as token counts. Larger
data has no baseline, so that fitting takes only seconds on one core at the lowest priority.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainers import registry
from trainers.contract import config as config_module
from trainers.contract.config import Config
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataOptions,
    DataSpec,
    Split,
)
from trainers.data.own import cache
from trainers.data.own.dataset import Own
from trainers.data.text import CharacterTokenizer
from trainers.files.json_files import parse_json

LOWEST_PRIORITY = 19
MOST_CPU_S = 60
# Maximum work for one pass over the data: number of inputs, or tokens of texts, × classes.
MOST_PRODUCTS = 2**24
MOST_ITERATIONS = 300
ON_INPUTS, ON_WORDS = "logistic regression", "logistic regression on word counts"
MOST_CHARACTERS = 3
ON_CHARACTERS = f"logistic regression on 1 to {MOST_CHARACTERS} characters"
LEAST_SQUARES = "linear least squares"


def main() -> None:
    """Print the references of the configuration on stdin."""
    os.nice(LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1))
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Sparse CSR tensor support")  # stderr is the page's log
    result = references_of(config_module.parse(parse_json(sys.stdin.buffer.read())))
    json.dump(result, sys.stdout, allow_nan=False)
    print()


def references_of(config: Config) -> dict[str, Any]:
    """Return `num_train`, `num_validation` and `references`: each a `label` and its `metrics`.

    Raises:
        ValueError, LookupError, OSError: if this machine cannot read the data.
    """
    registry.discover_all()
    dataset = registry.datasets()[config.dataset].create(DataOptions.of(config))
    if isinstance(dataset, Own) and cache.find(dataset.fingerprint) is None:
        raise ValueError("the data has not been prepared on this machine, or it has changed since")
    spec = dataset.spec()
    train, validation = dataset.load(torch.device("cpu"))
    label, metrics = reference(spec, train, validation)
    return {
        "num_train": len(train),
        "num_validation": len(validation),
        "references": [{"label": label, "metrics": metrics}] if metrics else [],
    }


def reference(spec: DataSpec, train: Split, validation: Split) -> tuple[str, dict[str, float]]:
    """Return the fitted model's label and validation metrics; empty if the data is too large."""
    size = len(train) * math.prod(spec.input_shape) * spec.num_classes
    if size > MOST_PRODUCTS or len(train) < 2 or len(validation) == 0:
        return "", {}
    if spec.task == TABULAR_REGRESSION:
        return LEAST_SQUARES, _least_squares(spec, train, validation)
    if spec.task not in (TABULAR_CLASSIFICATION, IMAGE_CLASSIFICATION, TEXT_CLASSIFICATION):
        return "", {}
    is_text = spec.task == TEXT_CLASSIFICATION
    # For a data set of characters, `decode` is a method of its tokenizer.
    is_characters = isinstance(getattr(spec.decode, "__self__", None), CharacterTokenizer)
    max_length = MOST_CHARACTERS if is_characters else 1
    features = tf_idf(spec, train, validation, max_length) if is_text else standardised(train, validation)
    targets = train.targets_of(torch.arange(len(train)))
    weights, bias = fit_logistic(features[0], targets, spec.num_classes)
    scores = features[1] @ weights + bias
    predicted = (scores[:, 0] > 0).long() if weights.shape[1] == 1 else scores.argmax(1)
    right = predicted == validation.targets_of(torch.arange(len(validation)))
    label = (ON_CHARACTERS if is_characters else ON_WORDS) if is_text else ON_INPUTS
    return label, {"accuracy": float(right.double().mean())}


def standardised(train: Split, validation: Split) -> tuple[Tensor, Tensor]:
    """Return (samples, features) of both splits, with mean 0 and deviation 1 on the training split."""
    inputs, validation_inputs = (_prepared(split).flatten(1).double() for split in (train, validation))
    mean, std = inputs.mean(0), inputs.std(0, correction=0)
    std[std == 0] = 1
    return (inputs - mean) / std, (validation_inputs - mean) / std


def tf_idf(spec: DataSpec, train: Split, validation: Split, max_length: int = 1) -> tuple[Tensor, Tensor]:
    """Return both splits' token counts weighted by rarity (tf-idf), sparse (samples, kinds).

    The kinds are the n-grams of 1 to `max_length` tokens in the training split. Each row has length 1. The
    weight of a token is ln((1 + texts) / (1 + texts with it)) + 1, as in scikit-learn's TfidfVectorizer.
    """
    counts = _counts(spec, train, validation, max_length)
    num_with = torch.bincount(counts[0].indices()[1], minlength=counts[0].shape[1])
    rarity = ((1 + len(train)) / (1 + num_with.double())).log() + 1
    weighted = []
    for count in counts:
        rows, tokens = count.indices()
        values = count.values() * rarity[tokens]
        lengths = torch.zeros(count.shape[0], dtype=torch.float64).index_add_(0, rows, values.square()).sqrt()
        scaled = torch.sparse_coo_tensor(
            count.indices(), values / lengths[rows], count.shape, check_invariants=False
        )
        weighted.append(scaled.coalesce().to_sparse_csr())
    return weighted[0], weighted[1]


def fit_logistic(inputs: Tensor, targets: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return weights (features, outputs) and bias (outputs,) of a logistic regression.

    Minimises the summed cross-entropy plus half the squared norm of the weights, as scikit-learn's
    LogisticRegression does by default, with full-batch L-BFGS. Two classes have one output.

    Args:
        inputs: (samples, features) doubles, dense or sparse CSR.
        targets: (samples,) class numbers.
    """
    num, num_features = inputs.shape
    num_outputs = 1 if num_classes == 2 else num_classes
    weights = torch.zeros(num_features, num_outputs, dtype=torch.float64)
    bias = torch.zeros(num_outputs, dtype=torch.float64)
    is_it = targets.double().unsqueeze(1)
    if num_outputs > 1:
        is_it = functional.one_hot(targets, num_classes).double()
    transposed = inputs.t() if inputs.layout == torch.strided else inputs.t().to_sparse_csr()
    optimizer = torch.optim.LBFGS(
        [weights, bias],
        max_iter=MOST_ITERATIONS,
        tolerance_grad=1e-5,
        tolerance_change=1e-12,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    @torch.no_grad()
    def loss_and_gradients() -> Tensor:
        scores = inputs @ weights + bias
        if num_outputs == 1:
            loss = functional.binary_cross_entropy_with_logits(scores, is_it)
            errors = (scores.sigmoid() - is_it) / num
        else:
            loss = functional.cross_entropy(scores, targets)
            errors = (scores.softmax(1) - is_it) / num
        weights.grad = transposed @ errors + weights / num
        bias.grad = errors.sum(0)
        return loss + weights.square().sum() / (2 * num)

    optimizer.step(loss_and_gradients)
    return weights, bias


def _least_squares(spec: DataSpec, train: Split, validation: Split) -> dict[str, float]:
    inputs, validation_inputs = standardised(train, validation)
    targets, validation_targets = (
        split.targets_of(torch.arange(len(split))).double().unsqueeze(1) for split in (train, validation)
    )
    mean = targets.mean()
    # Use an SVD, because columns may be linearly dependent.
    weights = torch.linalg.lstsq(inputs, targets - mean, driver="gelsd").solution
    squares = (validation_inputs @ weights + mean - validation_targets).square().sum()
    metrics = {"rmse": math.sqrt(float(squares) / len(validation_targets)) * spec.target_std}
    spread = (validation_targets - validation_targets.mean()).square().sum()
    return metrics | ({"r2": 1 - float(squares / spread)} if spread > 0 else {})


def _counts(spec: DataSpec, train: Split, validation: Split, max_length: int) -> tuple[Tensor, Tensor]:
    """Return the n-gram counts of each text of both splits, sparse (texts, kinds)."""
    runs_by_split = [_runs(spec, split, max_length) for split in (train, validation)]
    kinds = runs_by_split[0][1].unique()  # sorted
    counts = []
    for split, (rows, runs) in zip((train, validation), runs_by_split, strict=True):
        columns = torch.searchsorted(kinds, runs).clamp_max(len(kinds) - 1)
        is_known = kinds[columns] == runs
        indices = torch.stack([rows[is_known], columns[is_known]])
        ones = torch.ones(indices.shape[1], dtype=torch.float64)
        shape = (len(split), len(kinds))
        counts.append(torch.sparse_coo_tensor(indices, ones, shape, check_invariants=False).coalesce())
    return counts[0], counts[1]


def _runs(spec: DataSpec, split: Split, max_length: int) -> tuple[Tensor, Tensor]:
    """Return text and number of each n-gram of 1 to `max_length` tokens without padding, both (n-grams,)."""
    tokens = split.batch(torch.arange(len(split)))[0].long()
    assert (spec.vocabulary_size + 1) ** max_length < 2**63
    rows, runs = [], []
    for length in range(1, min(max_length, tokens.shape[1]) + 1):
        windows = tokens.unfold(1, length, 1)
        number = torch.zeros_like(windows[..., 0])
        for position in range(length):
            # Token + 1 as a digit, in base vocabulary + 1: no digit is 0, so n-grams of different lengths
            # differ.
            number = number * (spec.vocabulary_size + 1) + windows[..., position] + 1
        text, start = ((windows != spec.padding).all(-1)).nonzero(as_tuple=True)
        rows.append(text)
        runs.append(number[text, start])
    return torch.cat(rows), torch.cat(runs)


def _prepared(split: Split) -> Tensor:
    return split.prepare(split.batch(torch.arange(len(split)))[0])


if __name__ == "__main__":
    main()
