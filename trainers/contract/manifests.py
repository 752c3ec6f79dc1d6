"""A checkpoint's manifest and state: their required fields, and verification of the checkpoint's files.

A run may have been copied from an untrusted source, so a file named by a manifest is opened only if it is a
regular file below the checkpoint's folder and has the recorded size.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, TypeVar

from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.files import typed
from trainers.files.json_files import read_json
from trainers.files.plain_files import open_plain
from trainers.files.typed import Count, FieldError, Limit, PositiveCount

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
STATE = "state.json"
# Files that older checkpoints lack.
DESCRIPTION = "model.json"
OPTIMIZER = "optimizer.pt"
WEIGHTS = ("model.safetensors", "model.pt")
SHARDS = "shards"
DESCRIPTION_OF_SHARDS = f"{SHARDS}/.metadata"
# The strategy in the manifest of a script's checkpoint, and the file that the script saved.
SCRIPT = "script"
SCRIPT_VALUES = "script.pt"

MAX_FILES = 100_000
# While a user waits, checksums are computed up to this size; for larger checkpoints only sizes are compared.
QUICK_BYTES = 256 * 10**6

_NAME = re.compile(rf"({SHARDS}/)?\.?[A-Za-z0-9_][A-Za-z0-9_.-]{{0,100}}")
_BLOCK_BYTES = 2**20

Content = TypeVar("Content")


@dataclass(frozen=True, kw_only=True)
class SavedFile:
    """One file of a checkpoint, as it was saved."""

    size_bytes: Count
    sha256: Annotated[str, Limit(pattern="[0-9a-f]{64}", words="a SHA-256 checksum")]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`, without the fields that are only displayed.

    Attributes:
        num_threads: threads of each rank on the CPU; None for GPUs, and in older checkpoints.
    """

    step: Count
    world_size: PositiveCount
    strategy: str
    files: Mapping[str, SavedFile]
    num_threads: PositiveCount | None = None


@dataclass(frozen=True, kw_only=True)
class SavedProgress:
    """The progress of training in `state.json`."""

    step: Count
    epoch: Count
    samples_in_epoch: Count
    learning_rate: Annotated[float, Limit(low=0)] | None
    best_value: float | None
    best_step: Count | None
    num_evaluations_without_best: Count
    evaluated_step: Count | None


@dataclass(frozen=True, kw_only=True)
class Scaler:
    """The state of torch's gradient scaler."""

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: Count
    _growth_tracker: Count


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The content of `state.json`. A run without a scaler has null or an empty object."""

    progress: SavedProgress
    binding: Mapping[str, bool | int | str]
    scaler: Annotated[Mapping[str, Any], Limit(most=0)] | Scaler | None


class DamageError(ValueError):
    """A checkpoint's file is missing or differs from what was saved; the message names it."""


def latest_intact(run: RunDirectory, *, sum_bytes: float = math.inf) -> Checkpoint | None:
    """Return the latest checkpoint whose files are intact, or None.

    Args:
        sum_bytes: checksums are computed for this many bytes in total; beyond that only sizes are compared.
    """
    for item in sorted(run.list_checkpoints(), key=lambda item: (item.saved_unix_s, item.step), reverse=True):
        if find_fault(item, sum_bytes=sum_bytes) is None:
            return item
        sum_bytes -= item.size_bytes
    return None


def recorded_threads(run: RunDirectory, step: int | None, world_size: int) -> int | None:
    """Return the threads per CPU rank that a checkpoint was trained with, with the same number of ranks.

    None if unknown, for example if the manifest is damaged: loading the checkpoint reports the damage.
    """
    if step is None:
        return None
    try:
        raw = read_json(run.checkpoints / f"step_{step}" / MANIFEST)
        manifest = typed.read(Manifest, raw, ignores_unknown=True)
    except (OSError, ValueError):
        return None
    return manifest.num_threads if manifest.world_size == world_size else None


def find_fault(item: Checkpoint, *, sum_bytes: float = math.inf) -> str | None:
    """Return the error message if a checkpoint's files are damaged, or None.

    Args:
        sum_bytes: if the files are larger in total, only their sizes are compared.
    """
    try:
        for name, saved_file in _read_manifest(item).files.items():
            _compare(item, name, saved_file, checks_sums=item.size_bytes <= sum_bytes)
        read_state(item)
    except DamageError as error:
        return str(error)
    return None


def saved_files(item: Checkpoint) -> Mapping[str, SavedFile]:
    """Return the files of a checkpoint by name, as they were saved.

    Raises:
        DamageError: naming the field of the manifest that is missing or wrong.
    """
    return _read_manifest(item).files


def weights_bytes(item: Checkpoint) -> int:
    """Return the size of a checkpoint's weights, without reading a file; 0 if there are none."""
    weights = [item.path / name for name in WEIGHTS]
    return sum(path.stat().st_size for path in weights if path.is_file())


def read_state(item: Checkpoint) -> dict[str, Any]:
    """Return the training state of a checkpoint: `progress`, `binding` and `scaler`.

    Raises:
        DamageError: naming the field that is missing or wrong.
    """
    state = _read_object(item, STATE)
    _read_typed(TrainingState, state, STATE)
    if unknown := sorted(state["progress"].keys() - typed.field_names(SavedProgress)):
        raise DamageError(f"progress in {STATE} has an unknown field {unknown[0][:80]!r}")
    if state["progress"]["step"] != item.step:
        raise DamageError(
            f"{STATE} belongs to step {state['progress']['step']:,}, but its folder to step {item.step:,}"
        )
    return state


def _read_typed(kind: type[Content], value: dict[str, Any], name: str) -> Content:
    try:
        return typed.read(kind, value, ignores_unknown=True)
    except FieldError as error:
        raise DamageError(f"{name}: {error} (damaged or altered)") from None


def _read_object(item: Checkpoint, name: str) -> dict[str, Any]:
    try:
        value = read_json(item.path / name)
    except OSError as error:
        raise DamageError(f"{name} cannot be read ({error.strerror})") from None
    except ValueError:
        raise DamageError(f"{name} is not JSON (damaged or altered)") from None
    if not isinstance(value, dict):
        raise DamageError(f"{name} is not a JSON object (damaged or altered)")
    return value


def _read_manifest(item: Checkpoint) -> Manifest:
    raw = _read_object(item, MANIFEST)
    version = raw.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        versions = f"format {version}, and this version reads up to {FORMAT_VERSION}"
        raise DamageError(f"it was made by a newer version of this program ({versions})")
    if version != FORMAT_VERSION:
        raise DamageError(f"it has format {str(version)[:80]}, and this version reads {FORMAT_VERSION}")
    manifest = _read_typed(Manifest, raw, MANIFEST)
    if manifest.step != item.step:
        raise DamageError(
            f"{MANIFEST} belongs to step {manifest.step:,}, but its folder to step {item.step:,}"
        )
    files = manifest.files
    if not files:
        raise DamageError(f"{MANIFEST} names no files")
    if len(files) > MAX_FILES:
        raise DamageError(f"{MANIFEST} names {len(files):,} files; at most {MAX_FILES:,} are allowed")
    for name in files:
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise DamageError(f"{MANIFEST} names {name[:80]!r}, which is not a file of a checkpoint")
    required: list[tuple[str, ...]] = [(STATE,), WEIGHTS, (OPTIMIZER, DESCRIPTION_OF_SHARDS)]
    if manifest.strategy == SCRIPT:
        required = [(STATE,), (SCRIPT_VALUES,)]
    required += [(f"rank_{rank}.pt",) for rank in range(min(manifest.world_size, len(files) + 1))]
    for names in required:
        if not any(name in files for name in names):
            raise DamageError(f"{MANIFEST} does not name {' or '.join(names)}, which every checkpoint has")
    return manifest


def _compare(item: Checkpoint, name: str, saved_file: SavedFile, *, checks_sums: bool) -> None:
    path = item.path / name
    if path.parent.is_symlink():
        raise DamageError(f"{path.parent.name} is a link, and links are not followed")
    try:
        with open_plain(path) as file:
            is_same = path.stat().st_size == saved_file.size_bytes and (
                not checks_sums or _sha256_of(file, saved_file.size_bytes) == saved_file.sha256
            )
    except OSError as error:
        raise DamageError(f"{name} cannot be read ({error.strerror})") from None
    except ValueError:
        raise DamageError(f"{name} is not a regular file") from None
    if not is_same:
        raise DamageError(f"{name} differs from the saved file (damaged or altered)")


def _sha256_of(file: BinaryIO, num_bytes: int) -> str:
    """Return the checksum of the first `num_bytes` bytes, even if the file grows."""
    digest = hashlib.sha256()
    while num_bytes > 0 and (block := file.read(min(num_bytes, _BLOCK_BYTES))):
        digest.update(block)
        num_bytes -= len(block)
    return digest.hexdigest()
