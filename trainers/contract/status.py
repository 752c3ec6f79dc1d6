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
# The engine of runs started from a shell or before there were several engines.
LOCAL = "local"

LOST_MESSAGE = (
    "The supervisor of this run is gone, so the run ended without a final event "
    "(killed, or the machine restarted)."
)
RESUME_HINT = "Resume continues from the latest complete checkpoint."
NOTHING_SAVED_HINT = "Nothing was saved yet: start it again."
# The code of the warning that a user requested killing a rank.
RANK_KILL_ASKED = "rank_kill_asked"
DAMAGED_MESSAGE = (
    "The status file of this run is damaged, so its state is taken from its events. Resume writes a new one."
)


class StatusError(ValueError):
    """`status.json` is unreadable; the message is a sentence that gives the reason."""


# How an engine finds its job again: JSON that only the engine interprets.
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
        handle: how that engine finds its job again; None if the run was never started.
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


def values_of(status: Status) -> dict[str, Any]:
    """Return the file's values; `pid` and `pid_start_time` are also top-level fields, as in schema 1."""
    return {**asdict(status), "pid": status.pid, "pid_start_time": status.pid_start_time}


def to_json(status: Status) -> dict[str, Any]:
    """Return the content to write to the file."""
    return {"schema_version": SCHEMA_VERSION, **values_of(status)}


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
            f"The status file was made by a newer version of this program (schema {version}, this one knows "
            f"{SCHEMA_VERSION}), so the state is taken from the events. Open the run with the newer version."
        )
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        process = typed.read(_Process, raw, ignores_unknown=True)
        status = typed.read(Status, given, ignores_unknown=True)
    except FieldError as error:
        raise StatusError(DAMAGED_MESSAGE) from error
    if "handle" not in raw and process.pid is not None:  # schema 1 had one engine, whose runs are processes
        status = replace(status, handle=process_handle(process.pid, process.pid_start_time))
    return replace(status, error=status.error and status.error[:MAX_ERROR])
