"""Worker that computes, on two ranks, with and without the mistakes that need both. Started by torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.unit.fakes import spec_of
from trainers import registry
from trainers.contract.config import Config
from trainers.data.dataset import IMAGE_CLASSIFICATION, TensorSplit
from trainers.evaluation import Evaluator
from trainers.optimisation.objective import Objective
from trainers.parallel import process_group
from trainers.parallel.process_group import World
from trainers.report.observer import Fingerprints
from trainers.report.reporter import NullReporter
from trainers.strategies.ddp import Ddp

SPEC = spec_of(IMAGE_CLASSIFICATION, 3)
NUM_SAMPLES = 5


class Notebook(NullReporter):
    """A reporter that keeps all events."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def event(self, kind: str, **fields: Any) -> None:
        self.written.append({"kind": kind, **fields})


def wrapped(config: Config, world: World) -> Ddp:
    torch.manual_seed(0)
    strategy = registry.part(config, Ddp)(config, world)
    strategy.wrap(nn.Linear(4, 3))
    return strategy


def gradients(name: str, world: World) -> list[float]:
    """Return the gradient that this rank's optimizer receives after two micro-batches."""
    strategy = wrapped(Config(mistake=name), world)
    generator = torch.Generator().manual_seed(world.rank)
    for is_last in (False, True):
        with strategy.gradient_sync(enabled=is_last):
            strategy.model(torch.randn(2, 4, generator=generator)).square().mean().backward()
    found: list[float] = strategy.network.weight.grad.flatten().tolist()
    return found


def evaluation(name: str, world: World) -> dict[str, Any]:
    """Return the results for a number of samples that is not divisible by the number of ranks."""
    config = Config(mistake=name, nproc_per_node=world.world_size)
    strategy = wrapped(config, world)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(NUM_SAMPLES, 4, generator=generator)
    split = TensorSplit(inputs, torch.tensor([0, 1, 2, 0, 1]), device=world.device)
    evaluator = registry.part(config, Evaluator)(strategy, Objective(SPEC), SPEC, world)
    found = evaluator.evaluate(split, batch_size=2, should_interrupt=lambda: False)
    assert found is not None
    return {"confusion": found.confusion, "metrics": found.metrics, "loss": found.loss}


def compared(world: World) -> list[dict[str, Any]]:
    """Return the reported events for equal replicas and for a replica that differs on rank 1."""
    strategy, notebook = wrapped(Config(), world), Notebook()
    subject = Fingerprints.of(Config(fingerprint_every_steps=1), strategy, notebook)
    subject.after_step(1)
    with torch.no_grad():
        strategy.network.weight.mul_(1.0 + 0.5 * world.rank)
    subject.after_step(2)
    return notebook.written


def main() -> int:
    """Run all scenarios on both ranks."""
    registry.discover_all()
    world = process_group.join("cpu")
    alone = World(rank=0, local_rank=0, world_size=1, node=0, device=world.device)
    answer = {
        "alone": evaluation("none", alone),
        "gradients": {
            name: gradients(name, world) for name in ("none", "no_gradient_averaging", "sum_instead_of_mean")
        },
        "evaluations": {
            name: evaluation(name, world) for name in ("none", "rank0_metrics", "padded_validation")
        },
        "fingerprints": compared(world),
        "weights": wrapped(Config(), world).network.weight.norm().item(),
        "bias": wrapped(Config(), world).network.bias.norm().item(),
    }
    everybody = process_group.gather_json(answer, world.slow_group)
    if world.is_main:
        Path(sys.argv[1]).write_text(json.dumps(everybody), encoding="utf-8")
    process_group.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
