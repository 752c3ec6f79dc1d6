"""Checkpoints that are whole or not there: written aside, synced, renamed; verified when loaded."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainers.contract.rundir import RunDirectory, sync_directory, write_json_atomically
from trainers.distributed import World, gather_objects

FORMAT_VERSION = 1
SHARED_FILE = "shared.pt"


class CheckpointError(ValueError):
    """A checkpoint that is not there, not whole or not this run's."""


@dataclass(kw_only=True)
class Progress:
    """Where training stands; exactly what a resumed run goes on from."""

    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What one save came to."""

    path: Path
    size_bytes: int
    duration_s: float


def save(
    run: RunDirectory,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
    binding: Mapping[str, int],
) -> Saved:
    """Save the state of all ranks as `checkpoints/step_<n>`; every rank must call it.

    Rank 0 writes what is the same everywhere, each rank its own random state. When one rank cannot
    write, all ranks raise and nothing is left behind. `binding` is what a resume must find unchanged:
    the sampler's position means other samples otherwise.

    Raises:
        CheckpointError: naming the rank and the reason.
    """
    started = time.perf_counter()
    aside = run.checkpoints / f".step_{progress.step}.partial"
    if world.is_main:
        shutil.rmtree(aside, ignore_errors=True)
    problem = _attempt(lambda: aside.mkdir(parents=True, exist_ok=True))
    # No rank writes before the folder is fresh.
    _raise_if_any(gather_objects(problem, world), aside, world)

    written: dict[str, dict[str, Any]] = {}

    def write_own_files() -> None:
        name = f"rank_{world.rank}.pt"
        written[name] = _write(aside / name, _random_state(world.device))
        if world.is_main:
            shared = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "progress": vars(progress),
                "binding": dict(binding),
            }
            written[SHARED_FILE] = _write(aside / SHARED_FILE, shared)

    problem = _attempt(write_own_files)
    outcomes = gather_objects((problem, written), world)
    _raise_if_any([outcome[0] for outcome in outcomes], aside, world)  # type: ignore[index]
    files = {name: about for outcome in outcomes for name, about in outcome[1].items()}  # type: ignore[index]

    target = run.checkpoints / f"step_{progress.step}"
    problem = (
        _attempt(lambda: _publish(aside, target, files, progress.step, world)) if world.is_main else None
    )
    _raise_if_any(gather_objects(problem, world), aside, world)
    size = sum(about["size_bytes"] for about in files.values())
    return Saved(path=target, size_bytes=size, duration_s=time.perf_counter() - started)


def load(
    run: RunDirectory,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
    binding: Mapping[str, int],
) -> Progress:
    """Put every rank into the state saved at `step`, after checking every file against the manifest.

    Raises:
        CheckpointError: when there is no whole checkpoint of this step or a file was altered.
    """
    path = run.checkpoints / f"step_{step}"
    verify(run, step)
    # weights_only: a checkpoint is data and must not be able to run code.
    shared = torch.load(path / SHARED_FILE, map_location=world.device, weights_only=True)
    for name, value in binding.items():
        if (saved := shared["binding"].get(name)) != value:
            raise CheckpointError(
                f"checkpoint step_{step} was saved with {name} = {saved}, but now it is {value}: "
                "the run cannot go on with other data or another global batch; start a new run"
            )
    try:
        model.load_state_dict(shared["model"])
        optimizer.load_state_dict(shared["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint step_{step} does not fit the model of this run: {error}"
        ) from error
    own = path / f"rank_{world.rank}.pt"
    if own.exists():
        _restore_random_state(torch.load(own, map_location="cpu", weights_only=True), world.device)
    return Progress(**shared["progress"])


def verify(run: RunDirectory, step: int) -> None:
    """Check a checkpoint's files against the sizes and SHA-256 sums of its manifest.

    Raises:
        CheckpointError: naming the file that is missing or differs.
    """
    whole = {item.step: item for item in run.list_checkpoints()}
    if step not in whole:
        there = ", ".join(str(number) for number in whole) or "none"
        raise CheckpointError(f"there is no whole checkpoint of step {step}; there are: {there}")
    path = whole[step].path
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    for name, about in manifest["files"].items():
        try:
            digest, size = _digest(path / name)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint step_{step}: {name} cannot be read ({error.strerror})"
            ) from error
        if size != about["size_bytes"] or digest != about["sha256"]:
            raise CheckpointError(
                f"checkpoint step_{step}: {name} is not what was saved (damaged or altered)"
            )


def remove_leftovers(run: RunDirectory) -> None:
    """Delete what a save left behind when it was killed half-way; bring back what it had set aside."""
    for replaced in run.checkpoints.glob(".step_*.replaced"):
        target = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not target.exists():
            replaced.rename(target)
    for leftover in run.checkpoints.glob(".step_*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _publish(aside: Path, target: Path, files: dict[str, Any], step: int, world: World) -> None:
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "world_size": world.world_size,
        "saved_unix_s": time.time(),
        "files": files,
    }
    write_json_atomically(aside / "manifest.json", manifest)
    if target.exists():
        # Resumed from an older checkpoint, this step is reached a second time.
        replaced = target.with_name(f".{target.name}.replaced")
        target.rename(replaced)
        aside.rename(target)
        shutil.rmtree(replaced)
    else:
        aside.rename(target)
    sync_directory(target.parent)


def _write(path: Path, state: object) -> dict[str, Any]:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    digest, size = _digest(path)
    return {"size_bytes": size, "sha256": digest}


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size


def _attempt(action: Any) -> str | None:
    """Run a file operation; return why it failed instead of raising, so that all ranks can be told."""
    try:
        action()
    except (OSError, RuntimeError) as error:  # torch.save turns a full disk into a RuntimeError
        return str(error)
    return None


def _raise_if_any(problems: list[Any], aside: Path, world: World) -> None:
    failed = [(rank, problem) for rank, problem in enumerate(problems) if problem]
    if not failed:
        return
    if world.is_main:
        shutil.rmtree(aside, ignore_errors=True)
    rank, problem = failed[0]
    raise CheckpointError(f"rank {rank} could not write the checkpoint: {problem}")


def _random_state(device: torch.device) -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
