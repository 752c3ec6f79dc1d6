"""The fields of `status.json`, and how damaged files and files of newer versions are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from trainers.contract.events import State
from trainers.files import typed
from trainers.files.json_files import read_json
from trainers.files.typed import FieldError, Limit

SCHEMA_VERSION = 2
MAX_NAME = 100
MAX_ERROR = 10_000
# The engine of runs that were started from a shell, or by versions with only one engine.
LOCAL = "local"

LOST_MESSAGE = (
    "The supervisor of this run is gone, so the run ended without a final event "
    "(killed, or the machine restarted)."
)
RESUME_HINT = "Resume continues from the latest complete checkpoint."
NOTHING_SAVED_HINT = "No checkpoint was saved: start the run again."
# Code of the warning event that records a user's request to kill a rank.
RANK_KILL_REQUESTED = "rank_kill_asked"
DAMAGED_MESSAGE = (
    "The status file of this run is damaged. The state shown comes from the run's events. Resume writes a "
    "new status file."
)


class StatusError(ValueError):
    """`status.json` is unreadable; the message is a sentence that gives the reason."""


# JSON by which an engine finds its job again; only the engine interprets it.
Handle = str | Mapping[str, Any] | None


WholeNumber = Annotated[int, Limit(low=-(2**62) + 1, high=2**62 - 1)]


@dataclass(frozen=True, kw_only=True)
class _Process:
    pid: WholeNumber | None = None
    pid_start_time: float | None = None


def _process_of(handle: Handle) -> _Process:
    """Return the process of a handle; without values if it is a job of another kind."""
    try:
        return typed.read(_Process, handle, ignores_unknown=True)
    except FieldError:
        return _Process()


@dataclass(frozen=True, kw_only=True)
class Status:
    """The content of `status.json`.

    Attributes:
        engine: the name of the engine that started the run.
        handle: JSON by which that engine finds its job again; None if the run was never started.
        last_seen_unix_s: when the engine last wrote this file.
        exit_code: torchrun's exit code.
    """

    state: State
    engine: Annotated[str, Limit(least=1, most=MAX_NAME)] = LOCAL
    handle: Handle = None
    last_seen_unix_s: float | None = None
    exit_code: WholeNumber | None = None
    error: str | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None

    @property
    def pid(self) -> int | None:
        """The run's supervisor process, if the handle is a process of one machine."""
        return _process_of(self.handle).pid

    @property
    def pid_start_time(self) -> float | None:
        """The start time of that process: the pid alone may have been reused."""
        return _process_of(self.handle).pid_start_time


def process_handle(pid: int, start_time: float | None = None) -> Handle:
    """Return the handle of a run supervised by a process of this machine."""
    return {"pid": pid, "pid_start_time": start_time}


def status_values(status: Status) -> dict[str, Any]:
    """Return the file's values; `pid` and `pid_start_time` are also top-level fields, as in schema 1."""
    return {**asdict(status), "pid": status.pid, "pid_start_time": status.pid_start_time}


def to_json(status: Status) -> dict[str, Any]:
    """Return the content to write to the file."""
    return {"schema_version": SCHEMA_VERSION, **status_values(status)}


def read(path: Path) -> Status | None:
    """Return the content of the file, or None if it does not exist.

    Raises:
        StatusError: if it is damaged, or written by a newer version of this program.
    """
    try:
        raw = read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StatusError(DAMAGED_MESSAGE) from error
    if not isinstance(raw, dict):
        raise StatusError(DAMAGED_MESSAGE)
    version = raw.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StatusError(
            f"The status file was written by a newer version of this program (schema {version}; this "
            f"version reads up to {SCHEMA_VERSION}). The state shown comes from the run's events. Open the "
            "run with the newer version."
        )
    values = {name: value for name, value in raw.items() if value is not None}
    try:
        process = typed.read(_Process, raw, ignores_unknown=True)
        status = typed.read(Status, values, ignores_unknown=True)
    except FieldError as error:
        raise StatusError(DAMAGED_MESSAGE) from error
    # schema 1 had only the local engine, whose handle is a process
    if "handle" not in raw and process.pid is not None:
        status = replace(status, handle=process_handle(process.pid, process.pid_start_time))
    return replace(status, error=status.error and status.error[:MAX_ERROR])
