"""Channels-last images and filters give the same numbers in another memory layout."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.unit.fakes import world_of
from trainers.contract.config import Config
from trainers.parallel.precision import put_channels_last
from trainers.parallel.strategy import Strategy

CPU = torch.device("cpu")


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(8), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(8 * 3 * 3, 4))


def lies_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> list[float]:
    torch.manual_seed(4)
    images, classes = torch.randn(16, 3, 8, 8), torch.arange(16) % 4
    losses = []
    for _ in range(num_steps):
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("precision", "is_last"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_on_a_gpu_only_where_tensor_cores_compute(precision: str, *, is_last: bool) -> None:
    """The device is only an argument; no GPU is needed."""
    model = network()
    put_channels_last(model, torch.device("cuda"), precision)
    assert lies_last(model[0].weight) == is_last
    assert lies_last(model[0](torch.randn(2, 3, 8, 8))) == is_last


MAKERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("saved_last", [False, True], ids=["saved_usual", "saved_last"])
def test_a_state_of_the_other_layout_goes_on_as_if_it_were_this_one(
    make: Callable[..., torch.optim.Optimizer], *, saved_last: bool
) -> None:
    """Fused kernels process weights and moments in memory order, whatever their layouts are."""

    def strategy_of(*, is_last: bool) -> tuple[Strategy, torch.optim.Optimizer]:
        strategy = Strategy(Config(nproc_per_node=1), world_of(1))
        model = network()
        if is_last:
            put_channels_last(model, CPU, "fp32")
        strategy.wrap(model)
        return strategy, make(model.parameters())

    saved, optimizer = strategy_of(is_last=saved_last)
    train(saved.network, optimizer, 5)
    state = copy.deepcopy(saved.state_dict(optimizer))
    went_on, its_optimizer = strategy_of(is_last=not saved_last)
    went_on.load_state_dict(its_optimizer, state)
    for parameter, moments in its_optimizer.state.items():
        same_shape = [value for value in moments.values() if value.shape == parameter.shape]
        assert same_shape and all(value.stride() == parameter.stride() for value in same_shape)
    losses = train(went_on.network, its_optimizer, 5)
    assert losses == pytest.approx(train(saved.network, optimizer, 5), rel=1e-4)
