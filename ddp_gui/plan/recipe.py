"""Computes default values of the fields on which a run's success depends, from rows, task, model family and
ranks.

The fields' static defaults suit one data set of 8,000 images. With these defaults, a run on 120 rows ends
after 20 steps, and a film review classifier overfits its training texts. The rules use no names of data sets
or models, so they also apply to a user's own data. `benchmarks/recipes.py` compares the results with
scikit-learn (docs/recipes.md).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_gui.plan.catalogue import Catalogue
from trainers.contract import config as config_module
from trainers.contract.catalogue import CatalogueDataset, Model
from trainers.contract.config import Config
from trainers.contract.config.sections import NO_MISTAKE
from trainers.files import typed

# The fields that the rules decide on.
PERIODS = ("eval_every_steps", "checkpoint_every_steps")
FIELDS = (
    "batch_size", "learning_rate", "num_epochs", "weight_decay", "lr_schedule", "warmup_ratio", *PERIODS,
)  # fmt: skip
# If the rules choose fewer epochs, a run evaluates and saves a checkpoint this many times.
MIN_EVALUATIONS = 4
STEPS_PER_EPOCH = 20  # at least: the global batch is at most this part of the rows
SGD_RATE_FACTOR = 10  # SGD with momentum needs a higher rate than AdamW
LORA_RATE_FACTOR = 30  # adapters start at zero and have few weights; measured in docs/fine-tuning.md
MAX_EPOCHS = 100_000
MANY_CLASSES = 10
MEASURED = Path(__file__).with_name("recipes.json")
# Fields that hardly change the result or, on a CPU, the duration of a run.
_INDIFFERENT = frozenset({"name", "seed", "device", "nproc_per_node", "keep_last_checkpoints"})


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Training parameters for a family of models on one kind of data.

    Attributes:
        learning_rate: peak rate of AdamW.
        steps_per_row: optimizer steps per training sample: larger data sets take longer to overfit.
        max_epochs: passes after which the model overfits, independent of the number of ranks.
        min_steps, max_steps: limits of the steps. Below the minimum the optimizer does not converge; the
            maximum keeps a run on two CPU cores within a minute or two.
        min_epochs: passes over data that is too large for `max_steps`.
        max_batch_size: maximum number of samples in a batch of one rank.
    """

    learning_rate: float
    steps_per_row: float = 1.0
    max_epochs: int = MAX_EPOCHS
    min_steps: int
    max_steps: int
    min_epochs: int = 1
    max_batch_size: int = 64
    lr_schedule: str = "cosine"
    warmup_ratio: float = 0.0
    weight_decay: float = 0.01

    def num_steps(self, num_rows: int, steps_per_epoch: int) -> int:
        """Return the intended number of steps for a number of training samples."""
        max_steps = min(self.max_steps, self.max_epochs * steps_per_epoch)
        steps = max(self.min_steps, min(round(self.steps_per_row * num_rows), max_steps))
        return max(steps, self.min_epochs * steps_per_epoch)


_TEXT_TRANSFORMER = Rule(
    learning_rate=0.001,
    max_epochs=8,
    min_steps=400,
    max_steps=1500,
    max_batch_size=32,
    warmup_ratio=0.1,
    weight_decay=0.1,
)

# Rules by the family of the model (`trainers.registry.FAMILIES`) and the kind of data, which is the first
# part of the task's name. The family alone is the rule for other tasks. "many classes" means at least
# `MANY_CLASSES`.
RULES: Mapping[str, Rule] = {
    # Convex, and weights must move far, by about the rate in each step: a high rate, with a decay to zero.
    "linear": Rule(learning_rate=0.01, min_steps=1000, max_steps=2000),
    "dense": Rule(learning_rate=0.001, min_steps=500, max_steps=2000),
    "dense tabular": Rule(learning_rate=0.002, steps_per_row=1.5, min_steps=400, max_steps=3000),
    # A bag of words has a weight for each word, so it overfits within a few epochs.
    "dense text": Rule(
        learning_rate=0.01,
        max_epochs=4,
        min_steps=300,
        max_steps=2000,
        max_batch_size=32,
        weight_decay=0.1,
    ),
    "convolution": Rule(learning_rate=0.002, steps_per_row=0.5, min_steps=500, max_steps=1500),
    "recurrent": Rule(
        learning_rate=0.005,
        max_epochs=8,
        min_steps=400,
        max_steps=1500,
        max_batch_size=32,
        warmup_ratio=0.05,
        weight_decay=0.1,
    ),
    # Without a warm-up, attention layers can get stuck in a bad local minimum (Xiong et al. 2020).
    "transformer": Rule(learning_rate=0.001, min_steps=500, max_steps=1500, warmup_ratio=0.1),
    "transformer language": Rule(learning_rate=0.003, min_steps=400, max_steps=450, warmup_ratio=0.1),
    "transformer text": _TEXT_TRANSFORMER,
    # Many classes need more epochs: on names of 14 languages, 8 epochs reach an accuracy of 0.721 and 16
    # epochs 0.740 (docs/recipes.md).
    "transformer text, many classes": replace(_TEXT_TRANSFORMER, max_epochs=16, max_steps=2200),
    # docs/fine-tuning.md: a higher rate destroys the pretrained weights.
    "pretrained": Rule(
        learning_rate=3e-5,
        max_epochs=4,
        min_steps=100,
        max_steps=1500,
        min_epochs=2,
        max_batch_size=32,
        lr_schedule="linear",
        warmup_ratio=0.06,
    ),
}


def rule_for(dataset: CatalogueDataset, family: str) -> Rule:
    """Return the rule of a family of models for a data set."""
    kind = f"{family} {dataset.task.partition('_')[0]}"
    names = [f"{kind}, many classes"] if dataset.num_classes >= MANY_CLASSES else []
    return next(RULES[name] for name in (*names, kind, family, "dense") if name in RULES)


def values(
    config: Config, dataset: CatalogueDataset, model: Model, num_replicas: int, user_values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the fields in `FIELDS` that are not given.

    Args:
        config: provides the values of the given fields; other fields of `FIELDS` are ignored.
        num_replicas: copies of the model that train on different samples.
        user_values: the fields that a user has set, by name.
    """
    rule = rule_for(dataset, model.family)
    num_rows = dataset.num_samples(config.sequence_length)
    num_per_step = num_replicas * config.gradient_accumulation_steps
    factor = SGD_RATE_FACTOR if config.optimizer == "sgd" else 1
    if config.lora_rank and "lora_rank" in model.options:
        factor *= LORA_RATE_FACTOR
    defaults: dict[str, Any] = {
        "batch_size": _power_of_two(min(rule.max_batch_size, num_rows // (STEPS_PER_EPOCH * num_per_step))),
        "learning_rate": float(f"{rule.learning_rate * factor:g}"),
        "weight_decay": rule.weight_decay,
        "lr_schedule": rule.lr_schedule,
        "warmup_ratio": rule.warmup_ratio,
    }
    batch_size = config.batch_size if "batch_size" in user_values else defaults["batch_size"]
    steps_per_epoch = max(1, -(-num_rows // (batch_size * num_per_step)))
    # A user's number of steps takes precedence over the rule's number of epochs.
    num_steps = config.max_steps or rule.num_steps(num_rows, steps_per_epoch)
    num_epochs = defaults["num_epochs"] = min(MAX_EPOCHS, -(-num_steps // steps_per_epoch))
    period_steps = None
    if num_epochs < MIN_EVALUATIONS and "num_epochs" not in user_values and config.max_steps is None:
        period_steps = math.ceil(num_epochs * steps_per_epoch / MIN_EVALUATIONS)
    defaults |= dict.fromkeys(PERIODS, period_steps)
    return {name: value for name, value in defaults.items() if name not in user_values}


def complete(config: Config, catalogue: Catalogue, user_values: Mapping[str, Any]) -> Config:
    """Return the configuration with the rules' values for the fields that are not given.

    A configuration with an unknown data set, model or strategy is returned unchanged: `plan.make` refuses it.
    """
    dataset, model = catalogue.datasets.get(config.dataset), catalogue.models.get(config.model)
    strategy = catalogue.strategies.get(config.strategy)
    if dataset is None or model is None or strategy is None or all(name in user_values for name in FIELDS):
        return config
    num_replicas = config.num_replicas(strategy.ranks_per_replica)
    return replace(config, **values(config, dataset, model, num_replicas, user_values))


def with_fixed_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without rules: missing `FIELDS` get the field's own default.

    Lessons depend on these defaults: their text states results measured with them.
    """
    defaults = config_module.default_values()
    return {name: defaults[name] for name in FIELDS} | dict(raw)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A result of `benchmarks/recipes.py`, measured with the rules' values on CPU ranks.

    Attributes:
        seconds: CPU seconds divided by the number of ranks, which is the duration with one idle core per
            rank.
        values: the values of the fields in `FIELDS`.
    """

    metric: str
    mean: float
    seconds: float
    num_ranks: int
    values: Mapping[str, Any]


def expected(config: Config) -> Expected | None:
    """Return the measured result of a configuration; None if a field differs that affects the result."""
    result = _load_measured().get(f"{config.dataset} {config.model}")
    if result is None or config.mistake != NO_MISTAKE:
        return None
    changed = config.changed().keys() - {"dataset", "model", *FIELDS} - _INDIFFERENT
    is_same = config.world_size == result.num_ranks and all(
        getattr(config, name) == value for name, value in result.values.items()
    )
    return result if is_same and not changed else None


@functools.cache
def _load_measured() -> Mapping[str, Expected]:
    if not MEASURED.exists():
        return {}
    rows = json.loads(MEASURED.read_text("utf-8"))["rows"]
    return {
        f"{row['dataset']} {row['model']}": typed.read(Expected, row, ignores_unknown=True) for row in rows
    }


def _power_of_two(limit: int) -> int:
    """Return the largest power of two that is at most `limit`; at least 1."""
    return 1 << max(0, limit.bit_length() - 1)
