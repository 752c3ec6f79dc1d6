"""Worker that tests DDP's behaviour around a step; the results of all ranks go into one file.

python -m tests.integration.ddp_worker ANSWER.json

Tests start it with torchrun.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from torch.nn.parallel import DistributedDataParallel

from trainers.contract import config as contract
from trainers.data.dataset import IMAGE_CLASSIFICATION, DataSpec, TensorSplit
from trainers.evaluation import evaluate
from trainers.optimisation import compiling
from trainers.optimisation.objective import Objective
from trainers.parallel import process_group
from trainers.parallel.process_group import World
from trainers.strategies.ddp import Ddp

WIDTH = 600  # a layer is larger than a bucket of 1 MB
NUM_CLASSES = 3
NUM_SAMPLES = 24
NODES_OF_ALL = 10  # a partition of a split graph has fewer nodes
SPEC = DataSpec(
    task=IMAGE_CLASSIFICATION,
    input_shape=(WIDTH,),
    num_classes=NUM_CLASSES,
    class_names=(),
    num_train=NUM_SAMPLES,
    num_validation=NUM_SAMPLES,
    sample_unit="samples",
    description="",
    source="",
)
OBJECTIVE = Objective(SPEC)


class BuffersEachStep(Ddp):
    """DDP with torch's default: every forward pass starts with a broadcast of rank 0's buffers."""

    def _sends_buffers(self, network: nn.Module) -> bool:
        return True


def batch(world: World, number: int, size: int = 8) -> tuple[Tensor, Tensor]:
    """Return a batch that differs between ranks."""
    generator = torch.Generator().manual_seed(100 * number + world.rank)
    inputs = torch.randn(size, WIDTH, generator=generator)
    return inputs, torch.randint(0, NUM_CLASSES, (size,), generator=generator)


def wide() -> nn.Module:
    """Return five layers, four of which fill one bucket each."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)], nn.Linear(WIDTH, NUM_CLASSES))


def normed() -> nn.Module:
    """Return a small network with running statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, NUM_CLASSES))


def wrapped(kind: type[Ddp], network: nn.Module, world: World, **settings: Any) -> Ddp:
    """Return a strategy that wraps a network."""
    strategy = kind(contract.parse({"nproc_per_node": world.world_size, **settings}), world)
    strategy.wrap(network)
    return strategy


def train(strategy: Ddp, sizes: list[int]) -> list[float]:
    """Train one step for each batch size; return this rank's losses."""
    optimizer = torch.optim.SGD(strategy.network.parameters(), lr=0.05)
    losses = []
    for number, size in enumerate(sizes):
        inputs, targets = batch(strategy.world, number, size)
        with strategy.gradient_sync(enabled=True):
            loss = strategy.loss_function(OBJECTIVE)(inputs, targets, 1.0)
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def state_of(network: nn.Module) -> str:
    """Return a fingerprint of weights and buffers, by name."""
    return str({name: (value.double().sum().item(), value.double().norm().item())
                for name, value in network.state_dict().items()})  # fmt: skip


def never(_num_nodes: int) -> bool:
    """Return False for every graph."""
    return False


def compiled(world: World, *, fails_at: Callable[[int], bool] = never) -> dict[str, Any]:
    """Compile with a backend that records each graph's size, or fails on the last rank; then train."""
    graphs: list[int] = []

    def noting(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        if world.rank == world.world_size - 1 and fails_at(graphs[-1]):
            raise RuntimeError("no compiler here")
        return graph.forward

    settings = {"bucket_cap_mb": 1}
    plain = train(wrapped(Ddp, wide(), world, **settings), [8, 8, 5, 5])
    strategy = wrapped(Ddp, wide(), world, **settings)
    before = state_of(strategy.network)
    inputs, targets = batch(world, 0)
    problem = compiling.try_compile(strategy, inputs, targets, OBJECTIVE, backend=noting)
    found = {
        "problem": problem,
        "num_graphs": len(graphs),
        "nodes_in_newest": graphs[-1],
        "is_untouched": before == state_of(strategy.network)
        and all(parameter.grad is None for parameter in strategy.network.parameters()),
    }
    losses = train(strategy, [8, 8])
    found["num_graphs_after_steps"] = len(graphs)
    return found | {"losses": losses, "plain": plain[:2], "state": state_of(strategy.network)}


def compiled_with_an_odd_batch(world: World) -> dict[str, Any]:
    """Compile with "aot_eager", which needs no C++ compiler, and train on batches of two sizes."""
    graphs: list[int] = []

    def noting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        whole: Callable[..., Any] = lookup_backend("aot_eager")(graph, inputs)
        return whole

    sizes = [8, 8, 5, 5, 8]
    settings = {"bucket_cap_mb": 1}
    plain = wrapped(Ddp, wide(), world, **settings)
    plain_losses = train(plain, sizes)
    strategy = wrapped(Ddp, wide(), world, **settings)
    problem = compiling.try_compile(strategy, *batch(world, 0), OBJECTIVE, backend=noting)
    found = {"problem": problem, "num_graphs_at_first": len(graphs), "plain": plain_losses}
    found["losses"] = train(strategy, sizes)
    pairs = zip(strategy.network.parameters(), plain.network.parameters(), strict=True)
    found["worst_weight"] = max(float((mine - theirs).abs().max().detach()) for mine, theirs in pairs)
    return found | {"num_graphs": len(graphs), "state": state_of(strategy.network)}


def with_batch_norm(kind: type[Ddp], world: World) -> dict[str, Any]:
    """Train with batch norm for two epochs, with an evaluation after each."""
    strategy = wrapped(kind, normed(), world)
    generator = torch.Generator().manual_seed(5)
    split = TensorSplit(
        torch.randn(NUM_SAMPLES, WIDTH, generator=generator),
        torch.randint(0, NUM_CLASSES, (NUM_SAMPLES,), generator=generator),
        device=world.device,
    )
    sends_buffers = getattr(strategy.model, "broadcast_buffers", None)  # one rank is not wrapped
    found: dict[str, Any] = {"broadcasts": sends_buffers, "losses": [], "evaluations": []}
    for _ in range(2):
        found["losses"] += train(strategy, [8, 8, 8])
        found["saved"] = state_of(strategy.network) if world.is_main else ""
        evaluation = evaluate(strategy, OBJECTIVE, SPEC, split, batch_size=5, world=world)
        assert evaluation is not None
        found["evaluations"].append([evaluation.loss, evaluation.metrics])
    return found


def alone(world: World) -> list[dict[str, Any]]:
    """Train with and without DDP on one rank; return [] with several ranks."""
    found = []
    for is_wrapped in (False, True) if world.world_size == 1 else ():
        strategy = wrapped(Ddp, normed(), world)
        if is_wrapped:
            strategy.model = DistributedDataParallel(strategy.network, gradient_as_bucket_view=True)
        losses = train(strategy, [8, 8, 5, 8])
        names = list(strategy.network.state_dict())
        found.append({"losses": losses, "state": state_of(strategy.network), "names": names})
    return found


def main() -> int:
    """Run all scenarios on all ranks."""
    world = process_group.join("cpu")
    torch.set_num_threads(1)
    answer = {
        "split": compiled(world),
        "odd_batch": compiled_with_an_odd_batch(world),
        "failing": compiled(world, fails_at=lambda _: True),
        "failing_when_cut": compiled(world, fails_at=lambda num_nodes: num_nodes < NODES_OF_ALL),
        "shared_at_need": with_batch_norm(Ddp, world),
        "shared_each_step": with_batch_norm(BuffersEachStep, world),
        "alone": alone(world),
    }
    everybody = process_group.gather_json(answer, world.slow_group)
    if world.is_main:
        Path(sys.argv[1]).write_text(json.dumps(everybody), encoding="utf-8")
    process_group.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
