"""The code of each network draws the same weights and computes the same results, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ddp_gui.launch.as_code import models
from ddp_gui.launch.as_code.models import DataShape
from ddp_gui.launch.as_code.templates import NotAsCodeError
from trainers import registry
from trainers.data.dataset import DataSpec
from trainers.parallel.batch_norm import has_batch_norm
from trainers.registry import ModelOptions

registry.discover_all()
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "image_classification": [(1, 8, 8), (1, 28, 28), (3, 3, 5), (3, 90, 70), (3, 128, 128)],
    "tabular_classification": [(4,)],
    "tabular_regression": [(10,)],
    "text_classification": [(20,)],
    "language_modelling": [(16,)],
}
# Hundreds of millions of weights, with the same structure as the smaller sizes.
TOO_LARGE = {"base", "124m"}
CASES = [
    (name, size, task, shape)
    for name in models.KINDS
    for task in registry.models()[name].tasks
    for number, shape in enumerate(SHAPES[task])
    for size in ("", *registry.models()[name].sizes)
    if size not in TOO_LARGE and (number == 0 or size == "")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "task", "shape"), CASES)
def test_a_network_is_built_alike(name: str, size: str, task: str, shape: tuple[int, ...]) -> None:
    entry = registry.models()[name]
    vocabulary = 300 if task in ("text_classification", "language_modelling") else 0
    classes = {"language_modelling": vocabulary, "tabular_regression": 1}.get(task, 4)
    spec = DataSpec(
        task=task, input_shape=shape, num_classes=classes, class_names=(), num_train=1, num_validation=1,
        sample_unit="", description="", source="", vocabulary_size=vocabulary,
    )  # fmt: skip
    torch.manual_seed(3)
    network = entry.build(spec, ModelOptions(size=size or entry.default_size))
    code = models.model_code(
        name, size, DataShape(inputs=shape, num_outputs=str(classes), vocabulary=str(vocabulary))
    )
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional}
    torch.manual_seed(3)
    exec(f"{code.classes}\n{code.build}", names)
    written: nn.Module = names["model"]
    for one, other in zip(network.parameters(), written.parameters(), strict=True):
        assert torch.equal(one, other)
    inputs = torch.randint(0, vocabulary, (3, *shape)) if vocabulary else torch.randn(3, *shape)
    outputs = []
    for each in (network, written):
        if code.has_convolutions:
            each.to(memory_format=torch.channels_last)
        torch.manual_seed(5)
        found = each(inputs)
        outputs.append(found if isinstance(found, tuple) else (found,))
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))
    assert code.has_batch_norm == has_batch_norm(network)
    assert code.has_convolutions == any(isinstance(module, nn.Conv2d) for module in network.modules())
    assert list(eval(code.layers, names))


def test_a_model_of_more_packages_or_of_a_plug_in_is_refused_with_a_reason() -> None:
    written = set(models.KINDS)
    assert {name for name, entry in registry.models().items() if not entry.requires} == written
    shape = DataShape(inputs=(4,), num_outputs="2")
    with pytest.raises(NotAsCodeError, match="Model hf_text cannot be exported as code"):
        models.model_code("hf_text", "", shape)
    with pytest.raises(NotAsCodeError, match="Model mlp has no size 'huge'"):
        models.model_code("mlp", "huge", shape)
