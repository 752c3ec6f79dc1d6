"""Turns a configuration into everything one rank trains with."""

from __future__ import annotations

import difflib
import logging
import os
import random
from collections.abc import Mapping
from typing import TypeVar

import torch

from trainers import checkpoint, registry
from trainers.checkpoint import Progress
from trainers.contract import hardware
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.distributed import World
from trainers.loop import Job
from trainers.meter import StepMeter
from trainers.reporter import NullReporter
from trainers.telemetry import Pulse

log = logging.getLogger(__name__)

Entry = TypeVar("Entry")


def build_job(
    run: RunDirectory, reporter: NullReporter, pulse: Pulse, world: World, resume_step: int | None
) -> Job:
    """Build data, model and optimizer; every rank calls it and ends up with the same weights.

    Raises:
        ValueError: when the configuration names something that is not there.
        CheckpointError: when the checkpoint to resume from is not whole.
    """
    config = run.read_config()
    broken = registry.discover_all()
    for plugin in broken:
        reporter.warning("plugin_broken", f"{plugin.module} cannot be used: {plugin.message}", "See the log.")
    if world.device.type == "cpu" and config.device == "auto" and hardware.num_gpus():
        message = "This machine has a GPU, but torch cannot use it: the ranks run on the CPU."
        reporter.warning("no_cuda", message, "Usually the driver is too old or torch is a build for the CPU.")
    set_seed(config, world)
    dataset = pick(registry.datasets(), config.dataset, "dataset").create()
    spec = dataset.spec()
    train, validation = dataset.load(world.device)
    model_entry = pick(registry.models(), config.model, "model")
    if spec.task not in model_entry.tasks:
        raise ValueError(
            f"model {config.model} cannot do {spec.task}, which data set {config.dataset} is for"
        )
    network = model_entry.build(spec).to(world.device)
    size = sum(parameter.numel() for parameter in network.parameters())
    log.info("%s: %d training samples; %s: %d parameters", config.dataset, len(train), config.model, size)
    model = pick(registry.strategies(), config.strategy, "strategy").wrap(network, world)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, fused=True)
    progress = Progress()
    binding = {
        "num_train": len(train),
        "num_validation": len(validation),
        "batch_size": config.batch_size,
        "world_size": world.world_size,
    }
    # From here on every rank draws its own random numbers (dropout), whatever the weights took.
    torch.manual_seed(config.seed + 1 + world.rank)
    if world.is_main:
        checkpoint.remove_leftovers(run)
    if resume_step is not None:
        progress = checkpoint.load(run, resume_step, network, optimizer, world, binding)
    return Job(
        run=run,
        config=config,
        world=world,
        spec=spec,
        train=train,
        validation=validation,
        network=network,
        model=model,
        optimizer=optimizer,
        reporter=reporter,
        meter=StepMeter(world, reporter, list(network.parameters())),
        pulse=pulse,
        progress=progress,
        binding=binding,
        saved_step=resume_step,
    )


def set_seed(config: Config, world: World) -> None:
    """Seed every generator, the same on all ranks, so that all build the same weights."""
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    if config.deterministic:
        # cuBLAS wants its workspace fixed for this (CUDA documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    elif world.device.type == "cuda":
        torch.backends.cudnn.benchmark = True


def pick(table: Mapping[str, Entry], name: str, field: str) -> Entry:
    """Return the entry of this name.

    Raises:
        ValueError: naming the field, the value and what there is.
    """
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, table, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(f"{field} is {name!r}, but there are: {', '.join(sorted(table))}{hint}")
