"""Worker that trains, saves and loads with the real Checkpointer and writes its results.

python -m tests.integration.checkpoint_worker ANSWER.json JOBS.json

Tests start it with torchrun. Every job is an object with `do` (the name of a function below), `strategy`,
`run` (a run directory), and optionally `config` (changes to the configuration), `model` and `num_bytes`.
"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from tests.integration.strategy_worker import BASE, Training, run_jobs
from trainers import build
from trainers.checkpoint.checkpoint_writer import Outcome, Saved
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress
from trainers.contract import config as contract
from trainers.contract.checkpoint_files import CheckpointError
from trainers.contract.manifests import latest_intact
from trainers.contract.rundir import RunDirectory
from trainers.parallel import process_group
from trainers.parallel.process_group import World

SAVED_AT = 3
LAST_STEP = 6


class Part:
    """One rank's training and its checkpointer."""

    def __init__(self, job: dict[str, Any], world: World) -> None:
        values = BASE | job.get("config", {})
        config = contract.parse(values | {"nproc_per_node": world.world_size, "strategy": job["strategy"]})
        self.training = Training(build.make_strategy(config, world), config, job.get("model", "gpt"))
        self.announced: list[Outcome] = []
        self.checkpointer = Checkpointer(
            RunDirectory(Path(job["run"])),
            world,
            self.training.strategy,
            self.training.optimizer,
            scaler=None,
            binding={"num_train": 43},
            keep_last=2,
            keep_best=True,
            announce=self.announced.append,
        )

    def save(self, reason: str = "schedule") -> None:
        """Start to save the current step."""
        self.checkpointer.save(Progress(step=self.training.step, samples_in_epoch=7), reason)

    def lose_its_way(self) -> None:
        """Train one step and forget its losses, so that loading must replace different state."""
        self.training.run(1)
        self.training.losses.clear()

    def load(self, step: int) -> Progress:
        """Resume from a step."""
        progress = self.checkpointer.load(step)
        self.training.step = progress.step
        return progress


def save_and_load(job: dict[str, Any], world: World) -> dict[str, Any]:
    """Save during training; load into a new training, and train both to the same step."""
    part = Part(job, world)
    part.training.run(SAVED_AT)
    weights = _whole(part.training.weights())
    part.training.scores()  # most saves follow an evaluation
    part.save()
    drawn = _draw()
    part.training.run(LAST_STEP)
    (outcome,) = [part.checkpointer.wait()]
    assert isinstance(outcome, Saved) and part.announced == [outcome], outcome

    again = Part(job, world)
    again.lose_its_way()
    progress = again.load(SAVED_AT)
    drawn_again = _draw()
    again.training.run(LAST_STEP)
    ended, ended_again = _whole(part.training.weights()), _whole(again.training.weights())
    return {
        "outcomes": _gather_results((outcome.step, outcome.path.name, outcome.size_bytes), world),
        "progress": progress.samples_in_epoch,
        "losses": part.training.losses[SAVED_AT:],
        "losses_again": again.training.losses,
        "draws_alike": all(_gather_results(drawn == drawn_again, world)),
        "ends_alike": all(torch.equal(ended[name], ended_again[name]) for name in ended),
        "differs": not all(torch.equal(weights[name], ended[name]) for name in ended),
        "exported": _is_exported(outcome.path, weights),
    }


def load_elsewhere(job: dict[str, Any], world: World) -> dict[str, Any]:
    """Resume from a checkpoint of a different number of ranks."""
    part = Part(job, world)
    part.lose_its_way()
    progress = part.load(SAVED_AT)
    drawn = _gather_results(_draw(), world)
    part.training.run(LAST_STEP)
    return {"step": progress.step, "losses": part.training.losses, "drawn": drawn}


def fail_on_one_rank(job: dict[str, Any], world: World) -> dict[str, Any]:
    """Save while rank 1 has a small file size limit, train on, and save without the limit."""
    part = Part(job, world)
    part.training.run(1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["num_bytes"], limit[1]))
    part.save()
    failed = part.checkpointer.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    left = sorted(path.name for path in RunDirectory(Path(job["run"])).checkpoints.iterdir())
    part.save()  # the same step: it is not saved yet
    part.training.run(2)
    outcome = part.checkpointer.wait()
    return {
        "messages": _gather_results(str(failed) if isinstance(failed, CheckpointError) else None, world),
        "left": left,
        "outcomes": _gather_results(isinstance(outcome, Saved) and outcome.step, world),
        "losses": part.training.losses,
    }


def save_for_ever(job: dict[str, Any], world: World) -> dict[str, Any]:
    """Save every step until killed. Starts from the latest complete checkpoint, if any."""
    part = Part(job, world)
    run = RunDirectory(Path(job["run"]))
    found = latest_intact(run) if world.is_main else None
    newest, *_ = _gather_results(None if found is None else found.step, world)
    if newest is not None:
        part.load(newest)
    while True:
        part.training.run(part.training.step + 1)
        part.save()


def _draw() -> list[float]:
    """Return the next random numbers without advancing the generators."""
    state, own_state = torch.get_rng_state(), random.getstate()
    drawn = [*torch.rand(2).tolist(), random.random()]
    torch.set_rng_state(state)
    random.setstate(own_state)
    return drawn


def _whole(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of all ranks combined. A pipeline stage has only its own weights."""
    mine = {name: (str(weight.dtype), weight.tolist()) for name, weight in weights.items()}
    return {
        name: torch.tensor(numbers, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for part in process_group.gather_json(mine, None)
        for name, (dtype, numbers) in part.items()
    }


def _is_exported(folder: Path, weights: dict[str, torch.Tensor]) -> bool:
    """Return True if the exported safetensors file contains these weights."""
    from safetensors.torch import load_file

    found = load_file(folder / "model.safetensors")
    return all(torch.equal(found[name], weights[name]) for name in found) and len(found) >= len(weights) - 1


def _gather_results(value: Any, world: World) -> list[Any]:
    return process_group.gather_json(value, world.slow_group)


DEEDS = {deed.__name__: deed for deed in (save_and_load, load_elsewhere, fail_on_one_rank, save_for_ever)}


def main() -> int:
    """Run all jobs with the function that each names."""
    return run_jobs(lambda job, world: DEEDS[job["do"]](job, world))


if __name__ == "__main__":
    sys.exit(main())
