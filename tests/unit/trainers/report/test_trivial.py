"""Tests of the trivial predictors, which ignore the inputs and are optimal among constants."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch

from tests.unit.fakes import spec_of
from trainers import registry
from trainers.contract import events
from trainers.data.dataset import (
    LANGUAGE_MODELLING,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    CharacterSplit,
    TensorSplit,
)
from trainers.report import metrics

CPU = torch.device("cpu")
SPEC = spec_of(TABULAR_CLASSIFICATION, 3, input_shape=(2,), class_names=("a", "b", "c"))


def rows(*targets: float) -> TensorSplit:
    kind = torch.float32 if any(isinstance(target, float) for target in targets) else torch.int64
    inputs = torch.arange(2.0 * len(targets)).reshape(-1, 2)
    return TensorSplit(inputs, torch.tensor(targets, dtype=kind), device=CPU)


def test_no_constant_class_is_better_whatever_the_training_split() -> None:
    registry.discover_all()
    found = registry.task(TABULAR_CLASSIFICATION).trivial(SPEC, rows(0, 0, 0, 1), rows(0, 1, 1, 2))
    assert found is not None
    answer = (found.predictor, found.answer, found.metric, found.value)
    assert answer == ("most_frequent_class", "b", "accuracy", 0.5)
    assert found.standard_error == pytest.approx(math.sqrt(0.25 / 4))
    assert found.loss == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4)), "the entropy of the classes"
    train_entropy = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    assert found.train_loss == pytest.approx(train_entropy), "the training split has other shares"
    plan = {"seq": 0, "time_unix_s": 0.0, "kind": "plan", "num_train": 4, "num_steps": 1}
    assert events.is_complete_event(plan | {"trivial": asdict(found)})
    assert not events.is_complete_event(plan | {"trivial": asdict(found) | {"value": None}})
    assert not events.is_complete_event(plan | {"trivial": asdict(found) | {"train_loss": "0.5"}})
    older = {name: value for name, value in asdict(found).items() if name != "train_loss"}
    assert events.is_complete_event(plan | {"trivial": older})


def test_the_mean_has_an_r2_of_zero_in_the_targets_own_units() -> None:
    registry.discover_all()
    spec = replace(SPEC, task=TABULAR_REGRESSION, num_classes=1, target_mean=10.0, target_std=2.0)
    found = registry.task(TABULAR_REGRESSION).trivial(spec, rows(0.0, 1.0), rows(-1.0, 1.0, 3.0))
    assert found is not None and (found.predictor, found.metric) == ("mean", "rmse")
    assert found.answer == pytest.approx(12.0)
    assert found.loss == pytest.approx(8 / 3) and found.value == pytest.approx(2 * math.sqrt(8 / 3))
    assert found.train_loss == pytest.approx(0.25), "the variance of the training targets"
    # Squared errors 4, 0, 4: standard deviation 1.89, of their mean 1.09; for the root divide by twice 1.63.
    assert found.standard_error == pytest.approx(2 * 1.0887 / (2 * 1.633), rel=1e-3)


def test_a_unigram_is_counted_on_the_training_text(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SPEC, task=LANGUAGE_MODELLING, num_classes=2, input_shape=(4,))
    train = CharacterSplit(torch.tensor([0, 1] * 400), sequence_length=4, device=CPU)
    validation = CharacterSplit(torch.zeros(41, dtype=torch.int64), sequence_length=4, device=CPU)
    found = metrics.unigram(spec, train, validation)
    assert found.loss == pytest.approx(math.log(2), abs=0.01) and found.value == pytest.approx(2, abs=0.02)
    assert found.train_loss == pytest.approx(math.log(2), abs=0.01)
    monkeypatch.setattr(metrics, "MAX_TARGETS", 8)
    assert metrics.unigram(spec, train, validation).loss == pytest.approx(math.log(2), abs=0.01), "a sample"
