"""Fencing: among several starts of one run, only the latest may write its events and status.

On several machines an old launcher may return after the engine has restarted the run: its machine was
unreachable, or it was suspended. Each start therefore writes its name into `nodes/newest.json` before it
writes anything else, and every writer that belongs to a start reads that file before each write. Processes
that belong to no start, such as the page, are not fenced: they write only when no process of the run remains.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.files import typed
from trainers.files.json_files import read_json, write_json_atomically

# Environment variable that tells torchrun and its ranks which start they belong to.
VARIABLE = "TRAINERS_START"


class SupersededError(RuntimeError):
    """This process belongs to an earlier start of the run, so it must not write."""


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The latest start of a run.

    Attributes:
        start: its name; processes of other starts must not write.
        handle: the engine's handle of the job.
        restart: how often the engine had restarted that job.
    """

    start: str
    handle: Any = None
    restart: int = 0


_fence: tuple[Path, str] | None = None


def enter(run_dir: Path, start: str | None) -> None:
    """Fence this process's writes to a run from now on; None lifts the fence."""
    global _fence
    _fence = None if start is None else (run_dir, start)


def enter_by_environment(run_dir: Path) -> None:
    """Fence this process, a rank, with the start that its launcher put into the environment."""
    enter(run_dir, os.environ.get(VARIABLE))


def read_newest(run_dir: Path) -> Newest | None:
    """Return a run's latest start, or None if none has been written.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        return typed.read(Newest, read_json(_path(run_dir), must_be_ours=True), ignores_unknown=True)
    except (FileNotFoundError, ValueError):
        return None


def write_newest(run_dir: Path, newest: Newest) -> None:
    """Make a start the run's latest; the caller holds the lock of the run's events.

    Raises:
        OSError: if the file cannot be written.
    """
    write_json_atomically(_path(run_dir), vars(newest), mode=0o600)


def require_newest(run_dir: Path) -> None:
    """Return if this process may write to a run.

    Raises:
        SupersededError: if it belongs to an earlier start of the run.
        OSError: if the latest start cannot be read.
    """
    if _fence is None or _fence[0] != run_dir:
        return
    newest = read_newest(run_dir)
    if newest is not None and newest.start != _fence[1]:
        raise SupersededError(f"start {_fence[1]} of run {run_dir.name} is over: {newest.start} is newer")


def _path(run_dir: Path) -> Path:
    return run_dir / "nodes" / "newest.json"
