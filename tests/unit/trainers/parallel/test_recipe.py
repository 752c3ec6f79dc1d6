"""Tests of optimizers, weight decay, precision, and compilation with its fallback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.fakes import spec_of, world_of
from trainers import build, registry
from trainers.checkpoint.snapshot import Progress
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import IMAGE_CLASSIFICATION
from trainers.files.json_files import write_json_atomically
from trainers.optimisation import optimizers
from trainers.optimisation.objective import Objective
from trainers.optimisation.optimizers import LearningRate
from trainers.parallel.precision import Precision
from trainers.parallel.strategy import Strategy
from trainers.report.reporter import NullReporter
from trainers.report.telemetry import LiveProgress

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def strategy_of(config: Config) -> Strategy:
    strategy = Strategy(config, world_of(1))
    strategy.wrap(network())
    return strategy


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimizer_is_the_configured_one_and_only_matrices_decay(name: str, kind: type) -> None:
    config = Config(optimizer=name, weight_decay=0.3, momentum=0.8, nesterov=True, learning_rate=0.5)
    strategy = strategy_of(config)
    optimizer = optimizers.make_optimizer(config, strategy)
    assert type(optimizer) is kind
    decays = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    named = dict(strategy.network.named_parameters())
    assert len(decays) == len(named)
    for parameter_name, parameter in named.items():
        is_matrix = parameter_name in ("0.weight", "4.weight")
        assert decays[id(parameter)] == (0.3 if is_matrix else 0.0), parameter_name
    if name == "sgd":
        assert all(group["momentum"] == 0.8 and group["nesterov"] for group in optimizer.param_groups)


def train_steps(bits: Precision, *, poison_step: int | None = None) -> list[torch.Tensor]:
    """Return the first weight after each of four steps."""
    model = network().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = Strategy(Config(), world_of(1))
    strategy.autocast = bits.autocast
    strategy.wrap(model)
    torch.manual_seed(1)
    inputs, targets = torch.randn(16, 4), torch.randint(0, 3, (16,))
    objective = Objective(spec_of(IMAGE_CLASSIFICATION, 3))
    weights = []
    for step in range(4):
        with bits.autocast():
            loss = objective(strategy.model(inputs), targets, 1.0)
        loss.backward(bits.loss_scale())
        if step == poison_step:
            model[0].weight.grad[0, 0] = torch.inf  # type: ignore[union-attr,index]
        bits.unscale(optimizer)
        bits.step(optimizer)
        optimizer.zero_grad()
        weights.append(model[0].weight.detach().clone())  # type: ignore[union-attr,operator]
    return weights


def test_step_with_an_infinite_gradient_is_left_out_and_the_scale_falls() -> None:
    bits = Precision("fp16", CPU)
    before = float(bits.loss_scale() or 0)
    assert before == 2.0**16
    weights = train_steps(bits, poison_step=2)
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[2], weights[3])
    assert float(bits.loss_scale() or 0) == before / 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"compile": False}, "false unless compile is true"),
        ({"nproc_per_node": 2}, "false with more than one rank"),
        ({"gradient_accumulation_steps": 2}, "false with gradient_accumulation_steps above 1"),
        ({"strategy": "zero3"}, "false with zero3: only strategy ddp on one rank"),
    ],
)
def test_cuda_graphs_and_fp16_are_refused_where_they_cannot_work(values: dict[str, Any], words: str) -> None:
    registry.discover_all()
    asked = {"compile": True, "nproc_per_node": 1, "cuda_graphs": True}
    config = Config(**asked | values)
    problem = registry.strategies()[config.strategy].config_problem(config)
    assert problem is not None and "cuda_graphs" in problem and words in problem
    assert registry.strategies()["ddp"].config_problem(Config(**asked)) is None
    pieces = Config(strategy="zero3", precision="fp16", nproc_per_node=2)
    assert "bf16" in str(registry.strategies()["zero3"].config_problem(pieces)), "ranks hold pieces"


def test_schedule_of_a_run_that_ends_by_steps_goes_on_by_steps_on_other_ranks() -> None:
    values = {"batch_size": 8, "num_epochs": 100, "max_steps": 1000, "lr_schedule": "cosine"}
    progress = Progress(step=500, epoch=10, samples_in_epoch=0)  # of two ranks
    for num_ranks in (1, 2, 4):
        config = Config(nproc_per_node=num_ranks, learning_rate=1.0, **values)
        rate = LearningRate(config, num_replicas=num_ranks, num_train=800)
        assert rate.position(progress) == 501
        assert rate.at(501, None) == pytest.approx(0.5, abs=0.01)


def test_other_number_of_ranks_than_configured_is_refused_in_words(run: RunDirectory) -> None:
    write_json_atomically(run.config, Config(nproc_per_node=2).to_json())
    with pytest.raises(ValueError, match=r"torchrun started 1 ranks, but config.json asks for 2"):
        build.build_job(run, NullReporter(), LiveProgress(), world_of(1), None)
