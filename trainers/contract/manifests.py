"""A checkpoint's manifest and state: their required fields, and verification of the checkpoint's files.

A run may have been copied from an untrusted source, so a file named by a manifest is opened only if it is a
regular file below the checkpoint's folder and has the recorded size.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.files.json_files import read_json
from trainers.files.plain_files import open_plain

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
STATE = "state.json"
OPTIMIZER = "optimizer.pt"
WEIGHTS = ("model.safetensors", "model.pt")
SHARDS = "shards"
DESCRIPTION_OF_SHARDS = f"{SHARDS}/.metadata"

MAX_FILES = 100_000
# While a user waits, checksums are computed up to this size; for larger checkpoints only sizes are compared.
QUICK_BYTES = 256 * 10**6

_NAME = re.compile(rf"({SHARDS}/)?\.?[A-Za-z0-9_][A-Za-z0-9_.-]{{0,100}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK_BYTES = 2**20


class DamageError(ValueError):
    """A checkpoint's file is missing or differs from what was saved; the message names it."""


def newest_whole(run: RunDirectory, *, sum_bytes: float = math.inf) -> Checkpoint | None:
    """Return the checkpoint saved last whose files are intact, or None.

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
        manifest = read_json(run.checkpoints / f"step_{step}" / MANIFEST)
        found = manifest.get("num_threads") if manifest["world_size"] == world_size else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return found if type(found) is int and found > 0 else None


def find_fault(item: Checkpoint, *, sum_bytes: float = math.inf) -> str | None:
    """Return the error message if a checkpoint's files are damaged, or None.

    Args:
        sum_bytes: if the files are larger in total, only their sizes are compared.
    """
    try:
        manifest = _read_object(item, MANIFEST)
        _check_manifest(manifest, item.step)
        for name, about in manifest["files"].items():
            _compare(item, name, about, sums=item.size_bytes <= sum_bytes)
        read_state(item)
    except DamageError as error:
        return str(error)
    return None


def read_state(item: Checkpoint) -> dict[str, Any]:
    """Return the training state of a checkpoint: `progress`, `binding` and `scaler`.

    Raises:
        DamageError: naming the field that is missing or wrong.
    """
    state = _read_object(item, STATE)
    _require(state, {"progress": _is_object, "binding": _is_object, "scaler": _is_scaler}, STATE)
    _require(state["progress"], _PROGRESS, f"progress in {STATE}")
    if unknown := sorted(state["progress"].keys() - _PROGRESS.keys()):
        raise DamageError(f"progress in {STATE} has {unknown[0][:80]!r}, which is not known here")
    if state["progress"]["step"] != item.step:
        raise DamageError(
            f"{STATE} is of step {state['progress']['step']:,}, its folder of step {item.step:,}"
        )
    for name, value in state["binding"].items():
        if not isinstance(value, int | str):
            raise DamageError(f"binding in {STATE} has no number or text as {name[:80]!r}")
    return state


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


def _check_manifest(manifest: dict[str, Any], step: int) -> None:
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        versions = f"format {version}, this one knows {FORMAT_VERSION}"
        raise DamageError(f"it was made by a newer version of this program ({versions})")
    if version != FORMAT_VERSION:
        raise DamageError(f"it has format {str(version)[:80]}, and this version reads {FORMAT_VERSION}")
    # An older checkpoint has no number of threads; a checkpoint of a GPU run has null.
    _require({"num_threads": None, **manifest}, _MANIFEST, MANIFEST)
    if manifest["step"] != step:
        raise DamageError(f"{MANIFEST} is of step {manifest['step']:,}, its folder of step {step:,}")
    files = manifest["files"]
    if not files:
        raise DamageError(f"{MANIFEST} names no files")
    if len(files) > MAX_FILES:
        raise DamageError(f"{MANIFEST} names {len(files):,} files; {MAX_FILES:,} are the most")
    for name, about in files.items():
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise DamageError(f"{MANIFEST} names {name[:80]!r}, which is not a file of a checkpoint")
        if not isinstance(about, dict):
            raise DamageError(f"{MANIFEST} does not describe {name}")
        _require(about, _FILE, f"what {MANIFEST} says of {name}")
    num_ranks = manifest["world_size"]
    needed: list[tuple[str, ...]] = [(STATE,), WEIGHTS, (OPTIMIZER, DESCRIPTION_OF_SHARDS)]
    needed += [(f"rank_{rank}.pt",) for rank in range(min(num_ranks, len(files) + 1))]
    for names in needed:
        if not any(name in files for name in names):
            raise DamageError(f"{MANIFEST} does not name {' or '.join(names)}, which every checkpoint has")


def _compare(item: Checkpoint, name: str, about: Mapping[str, Any], *, sums: bool) -> None:
    path = item.path / name
    if path.parent.is_symlink():
        raise DamageError(f"{path.parent.name} is a link, and links are not followed")
    try:
        with open_plain(path) as file:
            is_same = path.stat().st_size == about["size_bytes"] and (
                not sums or _sha256_of(file, about["size_bytes"]) == about["sha256"]
            )
    except OSError as error:
        raise DamageError(f"{name} cannot be read ({error.strerror})") from None
    except ValueError:
        raise DamageError(f"{name} is not a plain file") from None
    if not is_same:
        raise DamageError(f"{name} is not what was saved (damaged or altered)")


def _sha256_of(file: BinaryIO, num_bytes: int) -> str:
    """Return the checksum of the first `num_bytes` bytes; reading stops there if the file grows."""
    digest = hashlib.sha256()
    while num_bytes > 0 and (block := file.read(min(num_bytes, _BLOCK_BYTES))):
        digest.update(block)
        num_bytes -= len(block)
    return digest.hexdigest()


def _require(values: Mapping[str, Any], fields: Mapping[str, Callable[[Any], bool]], where: str) -> None:
    for name, is_right in fields.items():
        if name not in values:
            raise DamageError(f"{where} lacks {name!r} (damaged or altered)")
        if not is_right(values[name]):
            raise DamageError(f"{where} has something else as {name!r} than was saved (damaged or altered)")


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _is_scaler(value: Any) -> bool:
    if not value:
        return value is None or value == {}
    if not isinstance(value, dict):
        return False
    numbers = all(_is_number(value.get(name)) for name in ("scale", "growth_factor", "backoff_factor"))
    return numbers and _is_count(value.get("growth_interval")) and _is_count(value.get("_growth_tracker"))


_MANIFEST: Mapping[str, Callable[[Any], bool]] = {
    "files": _is_object,
    "step": _is_count,
    "world_size": lambda value: _is_count(value) and value > 0,
    "strategy": lambda value: isinstance(value, str),
    "num_threads": lambda value: value is None or (_is_count(value) and value > 0),
}
_FILE: Mapping[str, Callable[[Any], bool]] = {
    "size_bytes": _is_count,
    "sha256": lambda value: isinstance(value, str) and _SHA256.fullmatch(value) is not None,
}
_PROGRESS: Mapping[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "epoch": _is_count,
    "samples_in_epoch": _is_count,
    "learning_rate": _or_none(lambda value: _is_number(value) and value >= 0),
    "best_value": _or_none(_is_number),
    "best_step": _or_none(_is_count),
    "num_evaluations_without_best": _is_count,
    "evaluated_step": _or_none(_is_count),
}
