"""Started by torchrun from a test: evaluates one fixed network and writes what was counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from trainers import distributed, objective, registry


def main() -> None:
    """Evaluate an untrained MLP on the digits' validation split, on all ranks together."""
    registry.discover_all()
    world = distributed.join("cpu")
    dataset = registry.datasets()["digits"].create()
    torch.manual_seed(0)
    model = registry.models()["mlp"].build(dataset.spec())
    _, validation = dataset.load(world.device)
    task = dataset.spec().task
    loss, metrics = objective.evaluate(model, validation, task=task, batch_size=37, world=world)
    if world.is_main:
        count = len(validation)
        found = {"loss": loss, "num_correct": round(metrics["accuracy"] * count), "count": count}
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    distributed.leave()


if __name__ == "__main__":
    main()
