"""Tests of models: shapes, gradients, published sizes, padding, image sizes, and expert routing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainers import registry
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataSpec,
)
from trainers.models.networks import transformer
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


def spec_of(task: str, input_shape: tuple[int, ...] | None = None, num_classes: int = 7) -> DataSpec:
    classes = {LANGUAGE_MODELLING: VOCABULARY, TABULAR_REGRESSION: 1}.get(task, num_classes)
    return DataSpec(
        task=task,
        input_shape=input_shape or SHAPES[task],
        num_classes=classes,
        class_names=(),
        num_train=1,
        num_validation=1,
        sample_unit="",
        description="",
        source="",
        vocabulary_size=VOCABULARY if task in (TEXT_CLASSIFICATION, LANGUAGE_MODELLING) else 0,
    )


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


def test_catalogue_has_the_models_of_the_house() -> None:
    names = "linear mlp cnn resnet vit bag_of_words gru bert gpt gpt_moe tabular_mlp"
    assert {entry.name for entry in OWN} >= set(names.split())


@pytest.mark.parametrize(("name", "task", "size"), CASES)
@pytest.mark.slow
def test_output_has_its_shape_every_weight_learns_and_the_seed_decides(
    name: str, task: str, size: str
) -> None:
    spec = spec_of(task)
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


@pytest.mark.parametrize(("size", "published"), [("18", 11_689_512), ("34", 21_797_672), ("50", 25_557_032)])
def test_resnets_have_the_published_number_of_parameters(size: str, published: int) -> None:
    assert num_parameters("resnet", spec_of(IMAGE_CLASSIFICATION, (3, 224, 224), 1000), size) == published


IMAGE_SHAPES = [(1, 8, 8), (3, 32, 48), (3, 100, 70), (1, 5, 30), (1, 3, 30), (3, 128, 128)]


@pytest.mark.parametrize("name", [entry.name for entry in OWN if IMAGE_CLASSIFICATION in entry.tasks])
@pytest.mark.parametrize("shape", IMAGE_SHAPES)
def test_image_models_take_any_size_and_colour(name: str, shape: tuple[int, int, int]) -> None:
    spec = spec_of(IMAGE_CLASSIFICATION, shape)
    model = make(name, spec).eval()
    with torch.no_grad():
        assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", [entry.name for entry in OWN if TEXT_CLASSIFICATION in entry.tasks])
def test_padding_changes_nothing(name: str) -> None:
    spec = spec_of(TEXT_CLASSIFICATION)
    model = make(name, spec).eval()
    tokens, _ = batch_of(spec)
    alone = torch.cat([model(row[row != 0][None]) for row in tokens])
    torch.testing.assert_close(model(tokens), alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(tokens), model(tokens.flip(0)))


def test_word_order_matters_to_the_gru_and_bert_but_not_to_the_bag() -> None:
    spec = spec_of(TEXT_CLASSIFICATION)
    tokens = torch.randint(1, VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    for name, matters in (("bag_of_words", False), ("gru", True), ("bert", True)):
        model = make(name, spec)
        for parameter in model.parameters():  # blocks start as the identity: make every weight matter
            nn.init.normal_(parameter, std=0.3)
        model.eval()
        same = torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-5)
        assert same != matters, name


@pytest.mark.parametrize("name", ["gpt", "gpt_moe"])
def test_a_place_sees_only_what_came_before(name: str) -> None:
    spec = spec_of(LANGUAGE_MODELLING)
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


@pytest.mark.parametrize("num_stages", [1, 2])
def test_stages_of_the_gpt_one_after_the_other_are_the_gpt(num_stages: int) -> None:
    spec = spec_of(LANGUAGE_MODELLING)
    model = make("gpt", spec)
    tokens, _ = batch_of(spec)
    x = tokens
    held = []
    for stage in model.pipeline_stages(num_stages):  # type: ignore[operator]
        x = stage(x)
        held += list(stage.parameters())
    assert torch.equal(x, model(tokens))
    assert {id(parameter) for parameter in held} == {id(parameter) for parameter in model.parameters()}
    with pytest.raises(ValueError, match="2 blocks"):
        model.pipeline_stages(3)  # type: ignore[operator]


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


def attention_in(kind: torch.dtype, visible: Tensor | None, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Return the output of `attend` and the gradient of its inputs, as fp32."""
    torch.manual_seed(0)
    heads = torch.randn(3, 2, 4, 12, 8).to(kind).requires_grad_()
    mixed = transformer.attend(*heads, visible, is_causal=is_causal)
    assert mixed.dtype in (kind, torch.float32)
    mixed.float().square().sum().backward()
    assert heads.grad is not None
    return mixed.detach().float(), heads.grad.float()


@pytest.mark.parametrize("longest_plain", [512, 8])
@pytest.mark.parametrize(("masks", "is_causal"), [(False, True), (True, False), (False, False)])
def test_attention_in_bf16_computes_what_torch_does_in_fp32(
    monkeypatch: pytest.MonkeyPatch, longest_plain: int, masks: bool, is_causal: bool
) -> None:
    monkeypatch.setattr(transformer, "LONGEST_PLAIN", longest_plain)
    visible = None
    if masks:
        visible = torch.rand(2, 1, 1, 12, generator=torch.Generator().manual_seed(1)) < 0.5
        visible[..., 0] = True
    expected, expected_gradient = attention_in(torch.float32, visible, is_causal=is_causal)
    found, gradient = attention_in(torch.bfloat16, visible, is_causal=is_causal)
    # bf16 has 8 significant bits.
    assert torch.allclose(found, expected, atol=0.03, rtol=0.02)
    assert torch.allclose(gradient, expected_gradient, atol=0.1, rtol=0.05)
