"""Worker that evaluates one fixed network and writes the counts. Tests start it with torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from trainers import registry
from trainers.contract.config import Config
from trainers.data.dataset import DataOptions, TensorSplit
from trainers.evaluation import evaluate
from trainers.optimisation.objective import Objective
from trainers.parallel import process_group
from trainers.parallel.strategy import Strategy
from trainers.registry import ModelOptions

# Divisible neither by two nor by three ranks.
NUM_SAMPLES = 355


def main() -> int:
    """Evaluate an untrained MLP on part of the validation split of digits, on all ranks together."""
    registry.discover_all()
    world = process_group.join("cpu")
    dataset = registry.datasets()["digits"].create(DataOptions())
    spec = dataset.spec()
    torch.manual_seed(0)
    strategy = Strategy(Config(nproc_per_node=world.world_size), world)
    strategy.wrap(registry.models()["mlp"].build(spec, ModelOptions()))
    _, validation = dataset.load(world.device)
    inputs, targets = validation.batch(torch.arange(NUM_SAMPLES))
    validation = TensorSplit(validation.prepare(inputs), targets, device=world.device)
    evaluation = evaluate(strategy, Objective(spec), spec, validation, batch_size=37, world=world)
    if world.is_main:
        count = len(validation)
        found = {
            "loss": evaluation.loss,
            "num_correct": round(evaluation.metrics["accuracy"] * count),
            "count": count,
            "macro_f1": evaluation.metrics["macro_f1"],
            "confusion": evaluation.confusion,
        }
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    process_group.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
