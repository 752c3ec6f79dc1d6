"""Evaluation is exact over the entire split for any batch size and number of ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.unit.fakes import LoneWorld, spec_of, world_of
from trainers.contract.config import Config
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_REGRESSION,
    CharacterSplit,
    DataSpec,
    ImageSplit,
    Split,
)
from trainers.evaluation import evaluate as evaluate_all
from trainers.evaluation import evaluation_batch
from trainers.optimisation.objective import Objective
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.report.metrics import Evaluation

CPU = torch.device("cpu")


def image_split(num_samples: int) -> ImageSplit:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (num_samples, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (num_samples,), generator=generator)
    return ImageSplit(images, labels, mean=128.0, std=64.0, device=CPU)


def linear_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.5))


IMAGES = spec_of(IMAGE_CLASSIFICATION, 3, input_shape=(1, 4, 4))


def evaluate(model: nn.Module, split: Split, spec: DataSpec, batch_size: int, world: World) -> Evaluation:
    strategy = Strategy(Config(nproc_per_node=world.world_size), world)
    strategy.wrap(model)
    objective = Objective(spec, label_smoothing=0.3)
    return evaluate_all(strategy, objective, spec, split, batch_size=batch_size, world=world)


def test_evaluation_takes_no_more_at_once_than_memory_surely_has() -> None:
    assert evaluation_batch(IMAGES, 64) == 256
    assert evaluation_batch(IMAGES, 2) == 16, "who trains on two at a time has no room for 256"
    assert evaluation_batch(IMAGES, 1000) == 1000
    gpt2 = spec_of(LANGUAGE_MODELLING, 50_257, input_shape=(1024,))
    assert evaluation_batch(gpt2, 2) == 2, "256 would take 53 GB"


@pytest.mark.parametrize(("num_samples", "world_size"), [(101, 2), (10, 3), (2, 4)])
def test_parts_of_the_ranks_add_up_to_the_whole(
    num_samples: int, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank's sums are added to those of the ranks before it."""
    split, model = image_split(num_samples), linear_model()
    whole = evaluate(model, split, IMAGES, 8, world_of(1))
    sums = torch.zeros(())

    def add_up(_world: World, values: torch.Tensor) -> torch.Tensor:
        nonlocal sums
        sums = sums + values
        return sums

    monkeypatch.setattr(LoneWorld, "sum", add_up)
    for rank in range(world_size):
        together = evaluate(model, split, IMAGES, 8, world_of(world_size, rank))
    assert together.loss == pytest.approx(whole.loss, rel=1e-12)
    assert together.metrics == whole.metrics, "counts are exact to the last sample"
    assert together.confusion == whole.confusion
    assert sum(map(sum, whole.confusion or [])) == num_samples


def test_language_metrics_follow_from_the_loss_of_the_next_characters() -> None:
    tokens = torch.randint(0, 5, (201,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = CharacterSplit(tokens, sequence_length=10, device=CPU)
    model = nn.Embedding(5, 5)
    found = evaluate(model, split, spec_of(LANGUAGE_MODELLING, 5, class_names=tuple("abcde")), 3, world_of(1))
    loss, metrics = found.loss, found.metrics
    assert metrics["perplexity"] == pytest.approx(math.exp(loss))
    assert metrics["bits_per_character"] == pytest.approx(loss / math.log(2))
    inputs, targets = split.batch(torch.arange(20))
    assert inputs.shape == targets.shape == (20, 10)
    assert inputs.flatten().tolist() == tokens[:200].tolist(), "windows miss no character"
    assert targets.flatten().tolist() == tokens[1:].tolist()
    assert metrics["accuracy"] == pytest.approx(float((model(inputs).argmax(-1) == targets).float().mean()))


def test_smoothing_is_for_training_and_a_models_own_loss_is_added() -> None:
    objective = Objective(IMAGES, label_smoothing=0.1)
    scores, targets = torch.randn(8, 3), torch.arange(8) % 3
    smooth = nn.functional.cross_entropy(scores, targets, label_smoothing=0.1)
    assert objective.training_loss(scores, targets) == smooth
    assert objective.training_loss((scores, torch.tensor(2.0)), targets) == smooth + 2
    plain = nn.functional.cross_entropy(scores, targets, reduction="sum")
    assert float(objective.summed_loss(scores, targets)) == pytest.approx(float(plain))
    assert objective(scores, targets, 0.5) == smooth * 0.5
    squared = Objective(spec_of(TABULAR_REGRESSION, 1))
    scores, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])
    assert float(squared.training_loss(scores, targets)) == pytest.approx((1 + 4) / 2)
