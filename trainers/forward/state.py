"""The trackers, and the state of a run's forwarding in its folder `forward/`.

Imports none of the trackers' libraries, because the page imports this module.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainers.contract.rundir import RunDirectory
from trainers.files import installation, private_files, typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import REPOSITORY


@dataclass(frozen=True, kw_only=True)
class TrackerKind:
    """A tracker, and its environment variables.

    Attributes:
        package: the package that the tracker needs; empty: none.
        address: the variable with the address of the service; empty: it writes files only.
        keys: variables with secrets, which are sent only to the service that the environment names.
        buffers: True if accepted data can be lost when the process is killed. Then all events are read again,
            and the tracker drops duplicates.
    """

    label: str
    package: str = ""
    address: str = ""
    keys: tuple[str, ...] = ()
    buffers: bool = False

    @property
    def is_installed(self) -> bool:
        """True if its package is installed; does not import the package."""
        return not self.package or importlib.util.find_spec(self.package) is not None

    @property
    def requirements(self) -> str:
        """The file with its pinned packages."""
        return f"requirements-{self.package}.txt"


TRACKERS: Mapping[str, TrackerKind] = {
    "tensorboard": TrackerKind(label="TensorBoard", package="tensorboard"),
    "trackio": TrackerKind(
        label="Trackio", package="trackio", address="TRACKIO_SERVER_URL", keys=("TRACKIO_WRITE_TOKEN",)
    ),
    "mlflow": TrackerKind(
        label="MLflow",
        address="MLFLOW_TRACKING_URI",
        keys=("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    ),
    "wandb": TrackerKind(
        label="Weights & Biases",
        package="wandb",
        address="WANDB_BASE_URL",
        keys=("WANDB_API_KEY",),
        buffers=True,
    ),
}
FOLDER = "forward"


@dataclass(kw_only=True)
class ForwardState:
    """The progress of forwarding a run to one tracker.

    Attributes:
        key: identifies the run at the tracker, so that a repeated request creates no second run.
        offset: all events before this byte of events.jsonl have been accepted.
        step: the last step among them.
        error: the last failure, until the tracker accepts data again.
        retry_unix_s: time of the next retry.
        where: the address or folder at which the tracker shows the run.
        memory: values that the tracker needs to continue.
    """

    phase: Literal["following", "retrying", "done", "given_up"] = "following"
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    offset: int = 0
    step: int = 0
    error: str | None = None
    retry_unix_s: float | None = None
    where: str = ""
    memory: dict[str, str | int] = field(default_factory=dict)


def read(run: RunDirectory, tracker: str) -> ForwardState | None:
    """Return the state of a run's forwarding to a tracker; None if it has not begun.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged.
    """
    try:
        return typed.read(ForwardState, read_json(run.path / FOLDER / f"{tracker}.json"))
    except FileNotFoundError:
        return None


def write(run: RunDirectory, tracker: str, state: ForwardState) -> None:
    """Replace the state atomically.

    Raises:
        OSError: if it cannot be written.
    """
    write_json_atomically(run.path / FOLDER / f"{tracker}.json", asdict(state))


def lock_file(run: RunDirectory, tracker: str) -> Path:
    """Return the file that the follower of a run keeps locked."""
    return run.path / FOLDER / f"{tracker}.lock"


def page_state(run: RunDirectory, tracker: str) -> dict[str, Any]:
    """Return the state for the run's page, with `is_alive`; without `phase` if forwarding has not begun.

    Raises:
        OSError, ValueError: see `read`.
    """
    info = {"is_alive": private_files.is_locked(lock_file(run, tracker)), "command": command(run)}
    state = read(run, tracker)
    names = ("phase", "step", "error", "retry_unix_s", "where")
    return info if state is None else info | {name: getattr(state, name) for name in names}


def command(run: RunDirectory) -> str:
    """Return the command that sends the rest of a run. The command needs no activated environment."""
    path = run.path.resolve()
    run_path = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
    arguments = shlex.join([sys.executable, "-m", "trainers.forward", str(run_path)])
    return installation.in_project(arguments)
