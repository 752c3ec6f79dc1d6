"""Recordings of steps: their paths in a run's directory, and the fields that a recording must have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainers.contract.rundir import RunDirectory
from trainers.files import typed
from trainers.files.json_files import read_json
from trainers.files.typed import Count

VERSION = 1
# The parts of a step in the order of the loop; "both" if forward and backward are interleaved.
Part = Literal["data", "forward", "backward", "both", "optimizer", "other"]
PARTS: tuple[Part, ...] = ("data", "forward", "backward", "both", "optimizer", "other")
# The fields of one bucket's all-reduce through shared memory.
ROUND_FIELDS = ("began_s", "written_s", "met_s", "ended_s", "bytes")
MAX_FILES = 200

# Recordings are larger than other JSON files: the limits of `json_files` are multiplied by this.
LIMITS_FACTOR = 16
_NAME = re.compile(r"step_([0-9]{1,15})\.json")
_MAX_UNIX_S = 253_402_300_800.0


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """A parameter of a bucket, with its size in bytes."""

    name: str
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket of gradients, which one all-reduce averages."""

    bytes: Count
    parameters: list[Bytes]


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """One bucket's all-reduce on a rank; the rounds have the fields `ROUND_FIELDS`."""

    bucket: Count
    began_s: float
    ended_s: float
    rounds: list[tuple[float, float, float, float, float]]


@dataclass(frozen=True, kw_only=True)
class OtherCollective:
    """A collective other than the all-reduce of a bucket."""

    name: str
    bytes: float | None
    began_s: float
    ended_s: float


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """One step of a rank; each part has its name, begin and end."""

    step: Count
    began_s: float
    ended_s: float
    parts: list[tuple[Part, float, float]]
    all_reduces: list[AllReduce]
    collectives: list[OtherCollective]


@dataclass(frozen=True, kw_only=True)
class RecordedRank:
    """The steps of one rank."""

    rank: Count
    node: Count
    host: str
    steps: list[RecordedStep]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How the clocks of the ranks were aligned, and the error."""

    method: str
    error_s: float
    num_checked: Count
    worst_contradiction_s: float


@dataclass(frozen=True, kw_only=True)
class RankNumbers:
    """Numbers computed from a rank's steps."""

    rank: Count


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Numbers computed from all ranks' steps."""

    overlap: float | None
    ranks: list[RankNumbers]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The content of a recording's file; times are in seconds of one clock for all ranks."""

    first_step: Count
    num_steps: Count
    world_size: Count
    strategy: str
    device: str
    all_reduce: str | None
    algorithm: str | None
    is_blocking: bool
    ended_early: str | None
    not_measured: list[str]
    clock: Clock
    buckets: list[Bucket]
    ranks: list[RecordedRank]
    numbers: Numbers


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
    recordings = []
    try:
        paths = list(run.recordings.iterdir())
    except OSError:
        return []
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if not match or path.is_symlink():
            continue
        try:
            stat = path.stat()
        except OSError:
            continue
        if path.is_file():
            written_unix_s = stat.st_mtime if 0 <= stat.st_mtime < _MAX_UNIX_S else 0.0
            recordings.append(
                RecordingFile(
                    step=int(match[1]), path=path, size_bytes=stat.st_size, recorded_unix_s=written_unix_s
                )
            )
    recordings.sort(key=lambda item: (-item.recorded_unix_s, -item.step))
    return recordings[:MAX_FILES]


def read(run: RunDirectory, step: int) -> dict[str, Any]:
    """Return the recording that begins with this step; this may take seconds.

    Raises:
        OSError: if it does not exist.
        ValueError: if the file is not a recording, or has an unknown version.
    """
    if run.recordings.is_symlink():
        raise FileNotFoundError(f"{run.recordings} is a link")
    raw = read_json(path_of(run, step), times=LIMITS_FACTOR)
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise ValueError(f"The recording of step {step:,} has another version or is damaged.")
    if not typed.fits(Recording, raw):
        raise ValueError(f"The recording of step {step:,} is damaged.")
    return raw
