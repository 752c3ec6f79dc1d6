"""Tests of models: shapes, gradients, published sizes, padding, image sizes, and expert routing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.unit.fakes import spec_of
from trainers import registry
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataSpec,
)
from trainers.optimisation.objective import Objective
from trainers.registry import ModelOptions

registry.discover_all()

LENGTH, VOCABULARY = 12, 50
HEAVY = {"124m", "base", "50", "34"}
SHAPES = {
    IMAGE_CLASSIFICATION: (1, 28, 28),
    TEXT_CLASSIFICATION: (LENGTH,),
    LANGUAGE_MODELLING: (LENGTH,),
    TABULAR_CLASSIFICATION: (4,),
    TABULAR_REGRESSION: (4,),
}


def spec_for(task: str, input_shape: tuple[int, ...] | None = None, num_classes: int = 7) -> DataSpec:
    classes = {LANGUAGE_MODELLING: VOCABULARY, TABULAR_REGRESSION: 1}.get(task, num_classes)
    vocabulary_size = VOCABULARY if task in (TEXT_CLASSIFICATION, LANGUAGE_MODELLING) else 0
    return spec_of(task, classes, input_shape=input_shape or SHAPES[task], vocabulary_size=vocabulary_size)


def batch_of(spec: DataSpec, size: int = 6) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    if spec.task == LANGUAGE_MODELLING:
        tokens = torch.randint(0, VOCABULARY, (size, LENGTH + 1))
        return tokens[:, :-1], tokens[:, 1:]
    if spec.task == TEXT_CLASSIFICATION:
        tokens = torch.randint(1, VOCABULARY, (size, LENGTH))
        for row in range(size):
            tokens[row, LENGTH - row :] = 0
        return tokens, torch.arange(size) % spec.num_classes
    inputs = torch.randn(size, *spec.input_shape)
    if spec.task == TABULAR_REGRESSION:
        return inputs, torch.randn(size)
    return inputs, torch.arange(size) % spec.num_classes


def make(name: str, spec: DataSpec, size: str = "", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return registry.models()[name].build(spec, ModelOptions(size=size))


OWN = [entry for entry in registry.models().values() if not entry.requires]
CASES = [
    (entry.name, task, size)
    for entry in OWN
    for task in entry.tasks
    for size in entry.sizes
    if size not in HEAVY
]


@pytest.mark.parametrize(("name", "task", "size"), CASES)
@pytest.mark.slow
def test_output_has_its_shape_every_weight_learns_and_the_seed_decides(
    name: str, task: str, size: str
) -> None:
    spec = spec_for(task)
    model = make(name, spec, size)
    inputs, targets = batch_of(spec)
    outer = (6, LENGTH) if task == LANGUAGE_MODELLING else (6,)
    with torch.no_grad():
        assert model.eval()(inputs).shape == (*outer, spec.num_classes)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    objective = Objective(spec)
    losses = []
    touched: set[str] = set()
    for _ in range(12):
        optimizer.zero_grad()
        loss = objective.training_loss(model(inputs), targets)
        loss.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, f"{key} is not part of the loss: DDP would wait for it"
            if parameter.grad.abs().sum() > 0:
                touched.add(key)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert touched == dict(model.named_parameters()).keys()
    assert losses[-1] < losses[0]
    again, other = make(name, spec, size), make(name, spec, size, seed=1)
    first = make(name, spec, size).state_dict()
    assert all(torch.equal(value, first[key]) for key, value in again.state_dict().items())
    assert any(not torch.equal(value, first[key]) for key, value in other.state_dict().items())


def num_parameters(name: str, spec: DataSpec, size: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make(name, spec, size).parameters())


@pytest.mark.parametrize(("size", "published"), [("18", 11_689_512), ("50", 25_557_032)])
def test_resnets_have_the_published_number_of_parameters(size: str, published: int) -> None:
    assert num_parameters("resnet", spec_for(IMAGE_CLASSIFICATION, (3, 224, 224), 1000), size) == published


IMAGE_SHAPES = [(1, 8, 8), (3, 100, 70), (1, 3, 30)]


@pytest.mark.parametrize("name", [entry.name for entry in OWN if IMAGE_CLASSIFICATION in entry.tasks])
@pytest.mark.parametrize("shape", IMAGE_SHAPES)
def test_image_models_take_any_size_and_colour(name: str, shape: tuple[int, int, int]) -> None:
    spec = spec_for(IMAGE_CLASSIFICATION, shape)
    model = make(name, spec).eval()
    with torch.no_grad():
        assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", [entry.name for entry in OWN if TEXT_CLASSIFICATION in entry.tasks])
def test_padding_changes_nothing(name: str) -> None:
    spec = spec_for(TEXT_CLASSIFICATION)
    model = make(name, spec).eval()
    tokens, _ = batch_of(spec)
    alone = torch.cat([model(row[row != 0][None]) for row in tokens])
    torch.testing.assert_close(model(tokens), alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(tokens), model(tokens.flip(0)))


@pytest.mark.parametrize("name", ["gpt", "gpt_moe"])
def test_a_place_sees_only_what_came_before(name: str) -> None:
    spec = spec_for(LANGUAGE_MODELLING)
    model = make(name, spec)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    model.eval()
    tokens, _ = batch_of(spec)
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % VOCABULARY
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_experts_are_mixed_by_the_gate_and_only_the_chosen_ones_count() -> None:
    from trainers.models.gpt_moe import NUM_CHOSEN, Experts

    torch.manual_seed(0)
    experts = Experts(8)
    x = torch.randn(2, 3, 8)
    probabilities = experts.gate(x).softmax(-1)
    expected = torch.zeros_like(x)
    for sample in range(2):
        for place in range(3):
            best = probabilities[sample, place].topk(NUM_CHOSEN)
            for share, number in zip(best.values / best.values.sum(), best.indices, strict=True):
                expected[sample, place] += share * experts.experts[int(number)](x[sample, place])
    torch.testing.assert_close(experts(x), expected)
