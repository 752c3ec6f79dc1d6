"""The folder `start/` of a run that starts from a checkpoint of another run.

The folder contains the checkpoint's weights and description, because the other run may be deleted. The files
are hard links if the file system supports them, which is safe because files of checkpoints never change.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from trainers.contract import manifests, rundir
from trainers.contract.config import Config
from trainers.contract.config.sections import check_start
from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.files import typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import open_plain
from trainers.files.typed import Count, Limit

FOLDER = "start"
ORIGIN = "origin.json"
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The content of `start/origin.json`: the checkpoint that a run started from, and its weights' file."""

    run_id: str
    step: Count
    dataset: str
    size_bytes: Count
    sha256: Annotated[str, Limit(pattern="[0-9a-f]{64}", words="a SHA-256 checksum")]


def find(runs_dir: Path, start_from: str) -> tuple[RunDirectory, Checkpoint]:
    """Return the run and the checkpoint that `start_from` names.

    Raises:
        ValueError: if the run or checkpoint does not exist, or cannot be started from.
    """
    check_start(start_from)
    run_id, _, step = start_from.rpartition("/")
    run = rundir.open_run(runs_dir, run_id)
    config = run.read_config()
    if config.is_script or config.is_broken_on_purpose:
        reason = "is a script's" if config.is_script else "was broken on purpose"
        raise ValueError(f"run {run_id} {reason}: no other run can start from its weights")
    checkpoints = {item.step: item for item in run.list_checkpoints()}
    if int(step) not in checkpoints:
        steps = ", ".join(map(str, checkpoints)) or "none"
        raise ValueError(f"run {run_id} has no checkpoint of step {int(step):,}; its checkpoints: {steps}")
    sequence_length(checkpoints[int(step)])
    return run, checkpoints[int(step)]


def copy(source: RunDirectory, item: Checkpoint, target: RunDirectory) -> None:
    """Link or copy the weights and the description of a checkpoint into a new run.

    Raises:
        DamageError: if a file is missing, or its checksum differs.
        OSError: if it cannot be written.
    """
    folder, files, dataset = target.path / FOLDER, manifests.saved_files(item), source.read_config().dataset
    folder.mkdir()
    weights = next(name for name in manifests.WEIGHTS if name in files)
    for name in (weights, manifests.DESCRIPTION):
        _link_or_copy(item.path / name, folder / name)
        with open_plain(folder / name) as file:
            digest = hashlib.file_digest(file, "sha256")
        if name not in files or digest.hexdigest() != files[name].sha256:
            raise manifests.DamageError(f"{name} of step {item.step:,} differs from the saved file")
    saved_file = asdict(files[weights])
    origin = Origin(run_id=source.run_id, step=item.step, dataset=dataset, **saved_file)
    write_json_atomically(folder / ORIGIN, asdict(origin))


def _link_or_copy(source: Path, target: Path) -> None:
    """Link a file, or copy it if it cannot be linked (vfat; another owner)."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        with open_plain(source) as file, target.open("xb") as copy_file:
            shutil.copyfileobj(file, copy_file, _BLOCK_BYTES)


def copy_function(run: RunDirectory, config: Config) -> Callable[[RunDirectory], None] | None:
    """Return a function that copies the checkpoint that a new run starts from; None if there is none.

    Raises:
        ValueError: if there is no such checkpoint in the run's folder.
    """
    if not config.start_from:
        return None
    source, item = find(run.path.parent, config.start_from)
    return functools.partial(copy, source, item)


def read_origin(run: RunDirectory) -> Origin | None:
    """Return the checkpoint that a run started from, or None. The file may come from an untrusted copy of a
    run.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        return typed.read(Origin, read_json(run.path / FOLDER / ORIGIN), ignores_unknown=True)
    except OSError:
        return None


def is_still_there(run: RunDirectory, source: RunDirectory) -> bool:
    """Return False if the source of a run was deleted, and another run of the same name has other weights.

    Raises:
        OSError: if the source's checkpoint cannot be read.
        ValueError: if that checkpoint, or the run's `start/origin.json`, is damaged.
    """
    origin = read_origin(run)
    item = next(
        (checkpoint for checkpoint in source.list_checkpoints() if origin and checkpoint.step == origin.step),
        None,
    )
    if origin is None or item is None:
        return True
    return any(file.sha256 == origin.sha256 for file in manifests.saved_files(item).values())


def size_bytes(item: Checkpoint) -> int:
    """Return the size of the weights that a run copies from a checkpoint."""
    return next(
        file.size_bytes for name, file in manifests.saved_files(item).items() if name in manifests.WEIGHTS
    )


def sequence_length(item: Checkpoint) -> int | None:
    """Return the sequence length of a checkpoint's model; None for models without text input.

    Raises:
        ValueError: if the checkpoint has no description, or a damaged one.
    """
    try:
        inputs = read_json(item.path / manifests.DESCRIPTION)["input"]
        return int(inputs["shape"][0]) if inputs["kind"] == "text" else None
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        raise ValueError(f"step {item.step:,} has no readable {manifests.DESCRIPTION}") from None
