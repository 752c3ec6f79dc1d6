"""Runs with a real network and real checkpoints, but without training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainers import build, registry
from trainers.checkpoint import description
from trainers.checkpoint.checkpoint_writer import Saved
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataSpec
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.registry import ModelOptions

CPU = torch.device("cpu")
WORLD = World(rank=0, local_rank=0, world_size=1, node=0, device=CPU)


class Plain(Strategy):
    """Strategy in which every rank holds the full model."""

    name = "plain"


def leave_trained_run(
    runs_dir: Path, dataset: str, model: str, *, steps: tuple[int, ...] = (1,), seed: int = 0, **values: Any
) -> tuple[RunDirectory, nn.Module, DataSpec]:
    """Return a run with these checkpoints, its network with the last weights, and its data specification."""
    registry.discover_all()
    config = Config(dataset=dataset, model=model, nproc_per_node=1, device="cpu", **values)
    options = ModelOptions.of(config)
    entry = registry.models()[model]
    data = build.create_dataset(config, entry, options)
    spec = data.spec()
    _, validation = data.load(CPU)
    run = rundir.create(runs_dir, config)
    for step in steps:
        torch.manual_seed(seed + step)
        network = build.build_network(entry, spec, options)
        strategy = Plain(config, WORLD)
        strategy.wrap(network)
        checkpointer = Checkpointer(
            run,
            WORLD,
            strategy,
            torch.optim.AdamW(network.parameters()),
            scaler=None,
            binding={},
            keep_last=None,
            keep_best=True,
            announce=lambda _: None,
            description=description.describe(config, spec, validation, network),
        )
        checkpointer.save(Progress(step=step), "schedule")
        outcome = checkpointer.wait()
        checkpointer.close()
        assert isinstance(outcome, Saved), outcome
    return run, network.eval(), spec


def delete_checkpoint(run: RunDirectory, step: int) -> None:
    """Delete a checkpoint, as a run that keeps only the latest does."""
    shutil.rmtree(run.checkpoints / f"step_{step}")
