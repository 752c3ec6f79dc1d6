"""Evaluation: exact over the whole split, however it is cut into batches and dealt to ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.unit.fakes import world_of
from trainers import objective
from trainers.data import IMAGE_CLASSIFICATION, LANGUAGE_MODELLING, CharacterSplit, ImageSplit

CPU = torch.device("cpu")


def image_split(num_samples: int) -> ImageSplit:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (num_samples, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (num_samples,), generator=generator)
    return ImageSplit(images, labels, mean=128.0, std=64.0, device=CPU)


def linear_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.5))


@pytest.mark.parametrize("batch_size", [1, 7, 50, 1000])
def test_any_batch_size_gives_what_one_pass_over_all_data_gives(batch_size: int) -> None:
    split, model = image_split(101), linear_model()
    inputs, targets = split.batch(torch.arange(101))
    with torch.no_grad():
        scores = model.eval()(inputs)
    model.train()
    loss, metrics = objective.evaluate(
        model, split, task=IMAGE_CLASSIFICATION, batch_size=batch_size, world=world_of(1)
    )
    assert loss == pytest.approx(float(nn.functional.cross_entropy(scores, targets)), rel=1e-6)
    assert metrics == {"accuracy": int((scores.argmax(1) == targets).sum()) / 101}
    assert model.training, "dropout is on again for training"


@pytest.mark.parametrize(("num_samples", "world_size"), [(101, 2), (10, 3), (2, 4)])
def test_parts_of_the_ranks_add_up_to_the_whole(num_samples: int, world_size: int) -> None:
    """Each rank alone gives the mean of its part; weighted by their sizes they are the whole."""
    split, model = image_split(num_samples), linear_model()
    whole = objective.evaluate(model, split, task=IMAGE_CLASSIFICATION, batch_size=8, world=world_of(1))
    sizes = [len(range(rank, num_samples, world_size)) for rank in range(world_size)]
    assert sum(sizes) == num_samples
    parts = [
        objective.evaluate(
            model, split, task=IMAGE_CLASSIFICATION, batch_size=8, world=world_of(world_size, rank)
        )
        for rank in range(world_size)
        if sizes[rank]
    ]
    sizes = [size for size in sizes if size]
    loss = sum(part[0] * size for part, size in zip(parts, sizes, strict=True)) / num_samples
    correct = sum(round(part[1]["accuracy"] * size) for part, size in zip(parts, sizes, strict=True))
    assert loss == pytest.approx(whole[0], rel=1e-6)
    assert correct == round(whole[1]["accuracy"] * num_samples)


def test_language_metrics_follow_from_the_loss() -> None:
    tokens = torch.randint(0, 5, (201,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = CharacterSplit(tokens, sequence_length=10, device=CPU)
    model = nn.Embedding(5, 5)
    loss, metrics = objective.evaluate(model, split, task=LANGUAGE_MODELLING, batch_size=3, world=world_of(1))
    assert metrics["perplexity"] == pytest.approx(math.exp(loss))
    assert metrics["bits_per_character"] == pytest.approx(loss / math.log(2))
    inputs, targets = split.batch(torch.arange(20))
    assert inputs.shape == targets.shape == (20, 10)
    assert metrics["accuracy"] == pytest.approx(float((model(inputs).argmax(-1) == targets).float().mean()))


def test_characters_targets_are_the_next_characters_and_windows_miss_none() -> None:
    split = CharacterSplit(torch.arange(21, dtype=torch.uint8), sequence_length=5, device=CPU)
    inputs, targets = split.batch(torch.arange(len(split)))
    assert inputs.flatten().tolist() == list(range(20))
    assert targets.flatten().tolist() == list(range(1, 21))
