"""Metrics agree with their definitions over the entire dataset for any batch size and number of ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.unit.fakes import spec_of, world_of
from trainers import registry
from trainers.contract import events
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataSpec,
)
from trainers.report import metrics
from trainers.report.metrics import Meter

CPU = torch.device("cpu")


def meter_of(spec: DataSpec) -> Meter:
    return registry.task(spec.task).meter(spec, CPU)


def measure(spec: DataSpec, scores: Tensor, targets: Tensor, pieces: int = 1) -> dict[str, float]:
    meter = meter_of(spec)
    for some_scores, some_targets in zip(scores.chunk(pieces), targets.chunk(pieces), strict=True):
        meter.add(some_scores, some_targets, torch.tensor(float(len(some_targets))))
    found = meter.result(world_of(1))
    assert found.loss == pytest.approx(1.0)
    return found.metrics


@pytest.mark.parametrize("pieces", [1, 4])
def test_classification_metrics_are_their_definitions(pieces: int) -> None:
    torch.manual_seed(0)
    targets = torch.randint(0, 8, (400,))
    scores = torch.randn(400, 10)  # classes 8 and 9 never occur, but are sometimes predicted
    scores[torch.arange(200), targets[:200]] += 3
    predicted = scores.argmax(1)
    f1 = []
    for number in range(10):
        hits = int(((predicted == number) & (targets == number)).sum())
        precision = hits / max(1, int((predicted == number).sum()))
        recall = hits / max(1, int((targets == number).sum()))
        f1.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    found = measure(spec_of(TEXT_CLASSIFICATION, 10), scores, targets, pieces)
    assert found["accuracy"] == int((predicted == targets).sum()) / 400
    assert found["macro_f1"] == pytest.approx(sum(f1) / 10, rel=1e-12)
    assert found["top5_accuracy"] == int((scores.topk(5).indices == targets[:, None]).any(1).sum()) / 400


@pytest.mark.parametrize("num_classes", [2, 20])
def test_confusion_has_a_row_for_each_true_class_and_a_column_for_each_predicted_one(
    num_classes: int,
) -> None:
    torch.manual_seed(1)
    targets = torch.randint(0, num_classes, (300,))
    scores = torch.randn(300, num_classes)
    meter = meter_of(spec_of(TABULAR_CLASSIFICATION, num_classes))
    for part in (slice(0, 77), slice(77, 300)):
        meter.add(scores[part], targets[part], torch.tensor(1.0))
    confusion = meter.result(world_of(1)).confusion
    predicted = scores.argmax(1)
    assert confusion == [
        [int(((targets == true) & (predicted == said)).sum()) for said in range(num_classes)]
        for true in range(num_classes)
    ]


def test_metrics_are_the_same_whether_or_not_there_is_a_confusion() -> None:
    """More than 20 classes have no confusion matrix; plain counts give the same metrics."""
    torch.manual_seed(2)
    targets = torch.randint(0, 9, (500,))
    scores = torch.randn(500, 9)
    with_matrix = metrics.ConfusionMeter(9, CPU)
    without = metrics.ClassificationMeter(9, CPU)
    for meter in (with_matrix, without):
        meter.add(scores, targets, torch.tensor(1.0))
    found, plain = with_matrix.result(world_of(1)), without.result(world_of(1))
    assert found.metrics == plain.metrics and plain.confusion is None
    many = meter_of(spec_of(IMAGE_CLASSIFICATION, 21))
    many.add(torch.randn(30, 21), torch.randint(0, 21, (30,)), torch.tensor(1.0))
    assert many.result(world_of(1)).confusion is None


def test_a_class_that_never_occurs_does_not_count_in_macro_f1_and_five_classes_have_no_top5() -> None:
    scores = torch.eye(5)[torch.tensor([0, 1, 1])]
    found = measure(spec_of(IMAGE_CLASSIFICATION, 5), scores, torch.tensor([0, 1, 0]))
    assert found == {"accuracy": 2 / 3, "macro_f1": pytest.approx((2 / 3 + 2 / 3) / 2)}


def test_regression_metrics_are_on_the_targets_own_scale() -> None:
    targets = torch.tensor([0.0, 1.0, 2.0, 3.0])
    scores = targets[:, None] + torch.tensor([[0.5], [-0.5], [1.0], [0.0]])
    found = measure(spec_of(TABULAR_REGRESSION, 1, target_std=10.0), scores, targets, pieces=2)
    assert found["rmse"] == pytest.approx(10 * math.sqrt(1.5 / 4))
    assert found["mae"] == pytest.approx(10 * 2.0 / 4)
    assert found["r2"] == pytest.approx(1 - 1.5 / 5.0)
    constant = measure(spec_of(TABULAR_REGRESSION, 1), scores, torch.ones(4))
    assert math.isnan(constant["r2"]), "targets that do not vary have no R²"


def test_bits_per_character_is_said_only_of_characters() -> None:
    scores, targets = torch.randn(2, 6, 3), torch.randint(0, 3, (2, 6))
    meter = meter_of(spec_of(LANGUAGE_MODELLING, 3, class_names=("a", "b", "c")))
    meter.add(scores, targets, torch.tensor(12 * math.log(2)))
    evaluation = meter.result(world_of(1))
    found = evaluation.metrics
    assert evaluation.loss == pytest.approx(math.log(2)) and evaluation.confusion is None
    assert found["bits_per_character"] == pytest.approx(1.0) and found["perplexity"] == pytest.approx(2.0)
    assert found["accuracy"] == int((scores.argmax(-1) == targets).sum()) / 12
    tokens = meter_of(spec_of(LANGUAGE_MODELLING, 3))
    tokens.add(scores, targets, torch.tensor(1.0))
    assert "bits_per_token" in tokens.result(world_of(1)).metrics


def test_better_is_more_accuracy_but_less_error_and_nan_is_never_better() -> None:
    assert events.primary_metric({"accuracy": 0.5, "perplexity": 3.0}) == "perplexity"
    assert events.primary_metric({"macro_f1": 0.5, "accuracy": 0.5}) == "accuracy"
    assert events.primary_metric({"something": 1.0}) is None
    assert events.is_better("accuracy", 0.6, 0.5) and not events.is_better("accuracy", 0.5, 0.5)
    assert events.is_better("rmse", 1.0, 2.0) and not events.is_better("perplexity", 3.0, 2.0)
    assert events.is_better("perplexity", 3.0, None)
    assert not events.is_better("perplexity", math.nan, None) and not events.is_better("rmse", None, None)
