"""The bin: keeps deleted runs unchanged until it is emptied."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_gui.auth import rights
from ddp_gui.devices import disk
from ddp_gui.runs import listing
from trainers.contract import events, rundir
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.files import private_files
from trainers.files.json_files import read_json

FOLDER = ".bin"
# Separates the number in an id of the bin; run ids cannot contain this character.
NUMBERED = "~"


@dataclass(frozen=True, kw_only=True)
class Binned:
    """A deleted run, with its id before deletion and its id in the bin."""

    bin_id: str
    run_id: str
    name: str
    owner: str | None
    deleted_unix_s: float
    size_bytes: int


def delete(runs_dir: Path, run_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Move ended runs to the bin; return each run's id and its id in the bin.

    If one of the runs cannot be moved, none is moved.

    Raises:
        ValueError: if a run does not exist or is live.
    """
    runs = [rundir.find_run(runs_dir, run_id) for run_id in dict.fromkeys(run_ids)]
    with contextlib.ExitStack() as locks:
        for run in runs:
            if not private_files.is_ours(run.path.lstat()):
                continue  # a run of another system user, which this page can neither stop nor start
            state = _state(run)
            if state in events.LIVE_STATES:
                raise ValueError(f"run {run.run_id} is {state}: stop it first, then delete it")
            # The lock prevents a start while the run is being moved.
            with contextlib.suppress(private_files.ForeignFileError):
                locks.enter_context(run.owned())
        return [(run.run_id, _move_to_bin(runs_dir, run)) for run in runs]


def find(runs_dir: Path, bin_id: str) -> RunDirectory:
    """Return a run in the bin.

    Raises:
        ValueError: if the bin does not contain it.
    """
    return RunDirectory(_in_bin(runs_dir, bin_id))


def ids(runs_dir: Path) -> list[str]:
    """Return the ids of all runs in the bin."""
    return [path.name for path in _paths(runs_dir)]


def not_in_bin(bin_id: object) -> ValueError:
    """Return an error for a run that is not in the bin."""
    return ValueError(f"run_id is {str(bin_id)[:120]!r}; allowed: the id of a run in the bin")


def restore(runs_dir: Path, bin_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Restore runs; return each run's id in the bin and its new id.

    Raises:
        ValueError: if the bin does not contain a run.
    """
    paths = [_in_bin(runs_dir, bin_id) for bin_id in dict.fromkeys(bin_ids)]
    return [(path.name, _move_back(runs_dir, path)) for path in paths]


def content(runs_dir: Path) -> list[Binned]:
    """Return the runs in the bin, most recently deleted first."""
    binned = [_read_binned(path) for path in _paths(runs_dir)]
    return sorted(binned, key=lambda item: (-item.deleted_unix_s, item.bin_id))


def empty(runs_dir: Path, bin_ids: Sequence[str] | None = None) -> tuple[int, int]:
    """Permanently delete runs in the bin, by default all of them; return their number and the bytes freed.

    Raises:
        ValueError: if the bin does not contain a run.
        OSError: if a run cannot be deleted; runs before it are already deleted.
    """
    if bin_ids is None:
        paths = _paths(runs_dir)
    else:
        paths = [_in_bin(runs_dir, bin_id) for bin_id in dict.fromkeys(bin_ids)]
    size_bytes = 0
    for path in paths:
        size_bytes += disk.taken_bytes(path)
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    return len(paths), size_bytes


def _state(run: RunDirectory) -> str:
    try:
        return liveness.read_status(run).state
    except (ValueError, TypeError, AttributeError):
        return "lost"  # the files are invalid, so only the lock can show whether the run is live


def _move_to_bin(runs_dir: Path, run: RunDirectory) -> str:
    folder = runs_dir / FOLDER
    private_files.make_folder(folder)
    number = 1
    # No lock is needed, because a rename never replaces a folder that is not empty.
    while True:
        bin_id = run.run_id if number == 1 else f"{run.run_id}{NUMBERED}{number}"
        if not os.path.lexists(folder / bin_id):
            break
        number += 1
    run.path.rename(folder / bin_id)
    # The folder's modification time becomes the time of deletion; it has no other use.
    os.utime(folder / bin_id)
    return bin_id


def _move_back(runs_dir: Path, path: Path) -> str:
    original_id = _original_id(path.name)
    run_id, number = original_id, 2
    while os.path.lexists(runs_dir / run_id):
        run_id = f"{original_id}.{number}"
        number += 1
    path.rename(runs_dir / run_id)
    return run_id


def _paths(runs_dir: Path) -> list[Path]:
    folder = runs_dir / FOLDER
    if not folder.is_dir():
        return []
    paths = [folder / name for name in sorted(os.listdir(folder)) if _is_bin_id(name)]
    # Include links: a run can be a link to a folder, which was moved as a link. Other entries are not runs.
    return [path for path in paths if path.is_symlink() or path.is_dir()]


def _in_bin(runs_dir: Path, bin_id: str) -> Path:
    path = runs_dir / FOLDER / str(bin_id)
    if not isinstance(bin_id, str) or not _is_bin_id(bin_id) or not os.path.lexists(path):
        raise not_in_bin(bin_id)
    return path


def _is_bin_id(name: str) -> bool:
    run_id, mark, number = name.partition(NUMBERED)
    return rundir.is_run_id(run_id) and (not mark or number.isdecimal())


def _original_id(bin_id: str) -> str:
    return bin_id.partition(NUMBERED)[0]


def _read_binned(path: Path) -> Binned:
    run = RunDirectory(path)
    try:
        config_name = str(read_json(run.config).get("name", ""))
    except (OSError, ValueError, AttributeError):
        config_name = ""
    name = listing.read_notes(run).name or config_name or _original_id(path.name)
    return Binned(
        bin_id=path.name,
        run_id=_original_id(path.name),
        name=name,
        owner=rights.owner_of(run),
        deleted_unix_s=path.lstat().st_mtime,
        size_bytes=disk.taken_bytes(path),
    )
