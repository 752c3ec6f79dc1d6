"""Recordings of steps: their paths in a run's directory, and the fields that a recording must have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json

VERSION = 1
# The parts of a step in the order of the loop; "both" if forward and backward are interleaved.
PARTS = ("data", "forward", "backward", "both", "optimizer", "other")
# The fields of one bucket's all-reduce through shared memory.
ROUND_FIELDS = ("began_s", "written_s", "met_s", "ended_s", "bytes")
MOST_FILES = 200

# Recordings are larger than other JSON files: the limits of `json_files` are multiplied by this.
LIMITS_TIMES = 16
_NAME = re.compile(r"step_([0-9]{1,15})\.json")
_LATEST_UNIX_S = 253_402_300_800.0


@dataclass(frozen=True, kw_only=True)
class RecordingFile:
    """A recording: its first step and its file."""

    step: int
    path: Path
    size_bytes: int
    recorded_unix_s: float


def path_of(run: RunDirectory, step: int) -> Path:
    """Return the file of the recording that begins with this step."""
    return run.recordings / f"step_{step}.json"


def list_recordings(run: RunDirectory) -> list[RecordingFile]:
    """Return the recordings of a run, latest first; ignores anything but regular files."""
    found = []
    try:
        there = list(run.recordings.iterdir())
    except OSError:
        return []
    for path in there:
        match = _NAME.fullmatch(path.name)
        if not match or path.is_symlink():
            continue
        try:
            about = path.stat()
        except OSError:
            continue
        if path.is_file():
            written = about.st_mtime if 0 <= about.st_mtime < _LATEST_UNIX_S else 0.0
            found.append(
                RecordingFile(
                    step=int(match[1]), path=path, size_bytes=about.st_size, recorded_unix_s=written
                )
            )
    found.sort(key=lambda item: (-item.recorded_unix_s, -item.step))
    return found[:MOST_FILES]


def read(run: RunDirectory, step: int) -> dict[str, Any]:
    """Return the recording that begins with this step; this may take seconds.

    Raises:
        OSError: if it does not exist.
        ValueError: if the file is not a recording, or has an unknown version.
    """
    if run.recordings.is_symlink():
        raise FileNotFoundError(f"{run.recordings} is a link")
    raw = read_json(path_of(run, step), times=LIMITS_TIMES)
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise ValueError(f"The recording of step {step:,} is of another version, or damaged.")
    if not _fits(raw, _RECORDING):
        raise ValueError(f"The recording of step {step:,} is damaged.")
    return raw


Check = Callable[[Any], bool]


def _fits(value: Any, fields: Mapping[str, Check]) -> bool:
    return isinstance(value, dict) and all(
        name in value and check(value[name]) for name, check in fields.items()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _with(fields: Mapping[str, Check]) -> Check:
    return lambda value: _fits(value, fields)


def _is_part(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and value[0] in PARTS and all(map(_is_number, value[1:]))
    )


def _is_round(value: Any) -> bool:
    return isinstance(value, list) and len(value) == len(ROUND_FIELDS) and all(map(_is_number, value))


_TIMES: Mapping[str, Check] = {"began_s": _is_number, "ended_s": _is_number}
_STEP: Mapping[str, Check] = {
    **_TIMES,
    "step": _is_count,
    "parts": _each(_is_part),
    "all_reduces": _each(_with({**_TIMES, "bucket": _is_count, "rounds": _each(_is_round)})),
    "collectives": _each(_with({**_TIMES, "name": _is_text, "bytes": _is_number_or_none})),
}
_RECORDING: Mapping[str, Check] = {
    "first_step": _is_count,
    "num_steps": _is_count,
    "world_size": _is_count,
    "strategy": _is_text,
    "device": _is_text,
    "all_reduce": _is_text_or_none,
    "algorithm": _is_text_or_none,
    "is_blocking": _is_yes_or_no,
    "ended_early": _is_text_or_none,
    "not_measured": _each(_is_text),
    "clock": _with(
        {
            "method": _is_text,
            "error_s": _is_number,
            "num_checked": _is_count,
            "worst_contradiction_s": _is_number,
        }
    ),
    "buckets": _each(
        _with({"bytes": _is_count, "parameters": _each(_with({"name": _is_text, "bytes": _is_count}))})
    ),
    "ranks": _each(
        _with({"rank": _is_count, "node": _is_count, "host": _is_text, "steps": _each(_with(_STEP))})
    ),
    "numbers": _with({"overlap": _is_number_or_none, "ranks": _each(_with({"rank": _is_count}))}),
}
