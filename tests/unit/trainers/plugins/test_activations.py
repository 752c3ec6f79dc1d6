"""Memory estimates agree with the tensors that autograd saves on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from trainers import registry
from trainers.data.dataset import DataOptions, DataSpec
from trainers.optimisation.objective import Objective
from trainers.plugins import catalog, memory
from trainers.plugins.activations import activation_bytes_per_sample
from trainers.registry import ModelOptions


@pytest.fixture(autouse=True, scope="module")
def plugins() -> None:
    registry.discover_all()


def really_kept(network: nn.Module, spec: DataSpec, batch_size: int) -> int:
    """Return the bytes of the storages that autograd saves for a batch."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    shape = (batch_size, *spec.input_shape)
    if spec.vocabulary_size:
        inputs = torch.randint(1, spec.vocabulary_size, shape)
        targets = inputs % spec.num_classes if spec.task == "language_modelling" else inputs[:, 0] * 0
    else:
        inputs, targets = torch.randn(shape), torch.zeros(batch_size, dtype=torch.long)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = Objective(spec).training_loss(network(inputs), targets)
    assert loss.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("cnn", "fashion_mnist"),
        ("vit", "digits"),
        ("gpt_moe", "austen"),
        ("bert", "austen_novels"),
        ("mlp", "digits"),
    ],
)
def test_what_is_told_is_what_autograd_keeps(model: str, dataset: str) -> None:
    entry, spec = registry.models()[model], registry.datasets()[dataset].create(DataOptions()).spec()
    told = activation_bytes_per_sample(catalog.on_meta(entry, spec, entry.default_size), spec)
    network = entry.build(spec, ModelOptions(size=entry.default_size))
    measured = (really_kept(network, spec, 12) - really_kept(network, spec, 4)) / 8
    assert told == pytest.approx(measured, rel=0.0005)


@pytest.mark.slow
def test_every_model_is_told_by_size_and_data_set() -> None:
    told: dict[str, Any] = memory.describe()
    assert told["errors"] == []
    small = told["models"]["cnn"]["small"]["fashion_mnist"]
    # The dense layer after the convolutions: 32 × 7 × 7 inputs, 128 outputs and their biases.
    assert small["largest_layer_bytes"] == 4 * (32 * 7 * 7 * 128 + 128)
    for model, sizes in told["models"].items():
        assert list(sizes) == list(registry.models()[model].sizes)
        for needs in sizes.values():
            assert needs
            for need in needs.values():
                assert need["activation_bytes_per_sample"] > 0 and need["largest_layer_bytes"] > 0
    gpt = told["models"]["gpt"]
    by_size = [gpt[size]["austen"]["activation_bytes_per_sample"] for size in ("small", "medium", "124m")]
    assert by_size == sorted(by_size)
