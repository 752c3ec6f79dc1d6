"""The fields of `status.json`, and how damaged files and files of newer versions are read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainers.contract import events
from trainers.contract.events import State
from trainers.files.json_files import read_json
from trainers.files.plain_files import descriptor_of_plain

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
    engine: str = LOCAL
    handle: Handle = None
    last_seen_unix_s: float | None = None
    exit_code: int | None = None
    error: str | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None

    @property
    def pid(self) -> int | None:
        """The run's supervisor process, if the handle is a process of one machine."""
        pid = self.handle.get("pid") if isinstance(self.handle, Mapping) else None
        return pid if _is_whole_number(pid) else None

    @property
    def pid_start_time(self) -> float | None:
        """The start time of that process: the pid alone may have been reused."""
        time = self.handle.get("pid_start_time") if isinstance(self.handle, Mapping) else None
        return time if _is_number(time) else None


def process_handle(pid: int, start_time: float | None = None) -> Handle:
    """Return the handle of a run supervised by a process of this machine."""
    return {"pid": pid, "pid_start_time": start_time}


def values_of(status: Status) -> dict[str, Any]:
    """Return the file's values; `pid` and `pid_start_time` are also top-level fields, as in schema 1."""
    return {**asdict(status), "pid": status.pid, "pid_start_time": status.pid_start_time}


def to_json(status: Status) -> dict[str, Any]:
    """Return the content to write to the file."""
    return {"schema_version": SCHEMA_VERSION, **values_of(status)}


def write_over(path: Path, status: Status) -> None:
    """Overwrite a status in place; if killed half-way, the file is detectably damaged.

    Raises:
        OSError: if the disk does not accept even that.
    """
    data = json.dumps(to_json(status), indent=2, ensure_ascii=False).encode()
    with os.fdopen(descriptor_of_plain(path, os.O_RDWR), "r+b", buffering=0) as file:
        file.write(data.ljust(os.fstat(file.fileno()).st_size))
        file.truncate(len(data))


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
    if not all(is_right(raw.get(name)) for name, is_right in _FIELDS.items()):
        raise StatusError(DAMAGED_MESSAGE)
    values: dict[str, Any] = {name: raw.get(name) for name in _FIELDS}
    pid, pid_start_time = values.pop("pid"), values.pop("pid_start_time")
    if "handle" not in raw and pid is not None:  # schema 1 had one engine, whose runs are processes
        values["handle"] = process_handle(pid, pid_start_time)
    values["error"] = None if values["error"] is None else values["error"][:MAX_ERROR]
    return Status(**values | {"engine": values["engine"] or LOCAL})


def _is_whole_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62)


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "state": lambda value: value in events.STATES,
    "engine": lambda value: value is None or (isinstance(value, str) and 0 < len(value) <= MAX_NAME),
    "handle": lambda value: value is None or isinstance(value, str | dict),
    "last_seen_unix_s": _is_number,
    "pid": _is_whole_number,
    "pid_start_time": _is_number,
    "exit_code": _is_whole_number,
    "error": lambda value: value is None or isinstance(value, str),
    "started_unix_s": _is_number,
    "ended_unix_s": _is_number,
}
