"""Tests of optimizers, weight decay, precision, and compilation with its fallback."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import SkipFrame

from tests.unit.fakes import world_of
from tests.unit.trainers.report.test_metrics import spec_of
from trainers import build, registry
from trainers.checkpoint.snapshot import Progress
from trainers.contract import heartbeats
from trainers.contract.config import Config
from trainers.contract.heartbeats import ADDRESS
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import IMAGE_CLASSIFICATION
from trainers.files.json_files import write_json_atomically
from trainers.optimisation import compiling, optimizers
from trainers.optimisation.objective import Objective
from trainers.optimisation.optimizers import LearningRate
from trainers.parallel.precision import Precision
from trainers.parallel.strategy import Strategy
from trainers.report.reporter import NullReporter
from trainers.report.telemetry import LiveProgress

CPU = torch.device("cpu")


class Shard(Strategy):
    """A strategy with sharded parameters."""

    is_sharded = True
    name = "shard"


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


@pytest.mark.parametrize(("name", "tolerance"), [("tf32", 0.0), ("bf16", 0.02), ("fp16", 0.005)])
def test_fewer_bits_train_nearly_alike(name: str, tolerance: float) -> None:
    exact, found = train_steps(Precision("fp32", CPU)), train_steps(Precision(name, CPU))
    assert float((exact[-1] - found[-1]).abs().max()) <= tolerance
    if name != "tf32":
        assert not torch.equal(exact[-1], found[-1]), "autocast did nothing"


def test_step_with_an_infinite_gradient_is_left_out_and_the_scale_falls() -> None:
    bits = Precision("fp16", CPU)
    before = float(bits.loss_scale() or 0)
    assert before == 2.0**16
    weights = train_steps(bits, poison_step=2)
    assert torch.equal(weights[1], weights[2]) and not torch.equal(weights[2], weights[3])
    assert float(bits.loss_scale() or 0) == before / 2


def test_fp16_is_refused_where_the_ranks_hold_pieces() -> None:
    assert "bf16" in str(Shard.why_not_config(Config(precision="fp16")))
    assert Strategy.why_not_config(Config(precision="fp16")) is None
    assert Shard.why_not_config(Config(precision="bf16")) is None


def compiled(backend: Any) -> tuple[nn.Module, str | None]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    objective = Objective(spec_of(IMAGE_CLASSIFICATION, 3))
    inputs, targets = torch.randn(16, 4), torch.randint(0, 3, (16,))
    strategy = Strategy(Config(), world_of(1))
    strategy.wrap(model)
    problem = compiling.try_compile(strategy, inputs, targets, objective, backend=backend)
    return model, problem


def broken_backend(*_arguments: Any) -> Any:
    raise RuntimeError("no compiler found\nand more")


def skipping_backend(*_arguments: Any) -> Any:
    raise SkipFrame("BF16 is not supported")  # as inductor does on a GPU without bf16


def test_a_backend_that_skips_every_graph_has_compiled_nothing() -> None:
    torch.compiler.reset()
    model, problem = compiled(skipping_backend)
    assert problem == compiling.NOTHING_COMPILED
    assert "forward" not in vars(model)
    assert model(torch.randn(2, 4)).shape == (2, 3)


@pytest.mark.parametrize("backend", ["eager", broken_backend])
def test_trying_to_compile_leaves_no_trace_whether_it_works_or_not(backend: Any) -> None:
    torch.compiler.reset()
    model, problem = compiled(backend)
    assert (problem is None) == (backend == "eager")
    assert all(parameter.grad is None for parameter in model.parameters())
    buffers = dict(model.named_buffers())
    assert int(buffers["1.num_batches_tracked"]) == 0 and float(buffers["1.running_mean"].abs().sum()) == 0
    assert "0.weight" in model.state_dict(), "the names of the weights stay"
    assert model(torch.randn(2, 4)).shape == (2, 3)
    if problem is not None:
        assert "no compiler found" in problem and "\n" not in problem
        assert "forward" not in vars(model), "it runs uncompiled"


def test_the_criterion_is_compiled_with_the_model_and_each_size_once() -> None:
    """One graph includes the loss, and the graph of the usual batch size is kept after an odd batch."""
    torch.compiler.reset()
    graphs: list[list[str]] = []

    def noting(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        assert all(type(size) is int for each in _inputs if torch.is_tensor(each) for size in each.shape)
        return graph.forward

    network = nn.Linear(4, 3)
    objective = Objective(spec_of(IMAGE_CLASSIFICATION, 3))
    strategy = Strategy(Config(), world_of(1))
    strategy.wrap(network)
    inputs, targets = torch.randn(16, 4), torch.randint(0, 3, (16,))
    plain = strategy.loss_function(objective)(inputs, targets, 0.5)
    assert compiling.try_compile(strategy, inputs, targets, objective, backend=noting) is None
    assert len(graphs) == 1 and any("cross_entropy" in target for target in graphs[0])
    loss_of = strategy.loss_function(objective)
    assert torch.equal(loss_of(inputs, targets, 0.5), plain)
    for size in (16, 5, 16, 5, 16):
        loss_of(inputs[:size], targets[:size], 1.0).backward()
    assert len(graphs) == 2, "one for each size"
    assert strategy.scores(inputs).shape == (16, 3), "without targets it gives scores"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"compile": False}, "false unless compile is true"),
        ({"nproc_per_node": 2}, "false with more than one rank"),
        ({"num_nodes": 2}, "false with more than one rank"),
        ({"gradient_accumulation_steps": 2}, "false with gradient_accumulation_steps above 1"),
        ({"strategy": "zero3"}, "false with zero3: only strategy ddp on one rank"),
        ({"strategy": "zero1"}, "false with zero1: only strategy ddp on one rank"),
    ],
)
def test_cuda_graphs_are_refused_where_steps_cannot_be_captured(values: dict[str, Any], words: str) -> None:
    registry.discover_all()
    asked = {"compile": True, "nproc_per_node": 1, "cuda_graphs": True}
    config = Config(**asked | values)
    problem = registry.strategies()[config.strategy].why_not_config(config)
    assert problem is not None and "cuda_graphs" in problem and words in problem
    assert registry.strategies()["ddp"].why_not_config(Config(**asked)) is None


@pytest.mark.parametrize(("fails", "codes"), [(True, ["cuda_graphs_failed"]), (False, [])])
def test_without_cuda_graphs_the_run_goes_on_compiled(
    monkeypatch: pytest.MonkeyPatch, fails: bool, codes: list[str]
) -> None:
    tried: list[bool] = []

    def trial(*_: Any, cuda_graphs: bool = False) -> str | None:
        tried.append(cuda_graphs)
        return "operation not permitted when stream is capturing" if cuda_graphs and fails else None

    monkeypatch.setattr(compiling, "try_compile", trial)
    monkeypatch.setattr(build, "_first_batch", lambda *_: (None, None))
    told: list[str] = []
    reporter: Any = SimpleNamespace(warning=lambda code, *_: told.append(code))
    strategy = Strategy(Config(), replace(world_of(1), device=torch.device("cuda", 0)))
    nothing: Any = None
    build._compile(Config(compile=True, cuda_graphs=True), strategy, nothing, nothing, reporter)
    assert tried == ([True, False] if fails else [True]) and told == codes


@pytest.mark.parametrize(("compiles", "minutes"), [(False, 1), (True, 10)], ids=["as written", "compiled"])
def test_a_rank_waits_longer_for_others_that_compile(
    monkeypatch: pytest.MonkeyPatch, compiles: bool, minutes: int
) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    assert heartbeats.silence_limit(Config(compile=compiles)) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("strategy", "deterministic", "is_chosen_by_time"),
    [
        ("ddp", False, True),
        ("zero3", False, True),
        ("pipeline", False, True),
        ("tensor", False, False),
        ("data_tensor", False, False),
        ("ddp", True, False),
    ],
)
def test_ranks_choose_convolutions_by_time_only_where_they_may_differ(
    monkeypatch: pytest.MonkeyPatch, strategy: str, deterministic: bool, is_chosen_by_time: bool
) -> None:
    """Tensor parallel ranks hold copies of parameters that are not sharded.

    The gradients of these copies are not averaged.
    """
    registry.discover_all()
    world = replace(world_of(4), device=torch.device("cuda", 0))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not is_chosen_by_time)
    config = Config(strategy=strategy, nproc_per_node=4, deterministic=deterministic, tensor_parallel_size=2)
    build.choose_convolutions(config, registry.strategies()[strategy](config, world))
    assert torch.backends.cudnn.benchmark is is_chosen_by_time


def rate_after_resume(num_ranks: int, lr_schedule: str, max_steps: int | None = 1000) -> tuple[float, int]:
    """Return the learning rate of step 501 and the position in the schedule, after 500 steps on two ranks."""
    config = Config(
        batch_size=8,
        nproc_per_node=num_ranks,
        num_epochs=100,
        max_steps=max_steps,
        lr_schedule=lr_schedule,
        lr_step_epochs=10,
        learning_rate=1.0,
    )
    num_train = 800  # 50 steps per epoch on two ranks
    rate = LearningRate(config, num_replicas=num_ranks, num_train=num_train)
    progress = Progress(step=500, epoch=10, samples_in_epoch=0)
    return rate.at(rate.position(progress), None), rate.position(progress)


def test_schedule_of_a_run_that_ends_by_steps_goes_on_by_steps_on_other_ranks() -> None:
    half, position = rate_after_resume(2, "cosine")
    assert position == 501 and half == pytest.approx(0.5, abs=0.01)
    for num_ranks in (1, 4):
        assert rate_after_resume(num_ranks, "cosine") == (half, 501), "neither at its end nor back again"


def test_other_number_of_ranks_than_configured_is_refused_in_words(run: RunDirectory) -> None:
    write_json_atomically(run.config, Config(nproc_per_node=2).to_json())
    with pytest.raises(ValueError, match=r"torchrun started 1 ranks, but config.json asks for 2"):
        build.build_job(run, NullReporter(), LiveProgress(), world_of(1), None)
