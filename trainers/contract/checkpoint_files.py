"""Checkpoint folders: names, checksums, publishing and deleting."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainers.contract import manifests, rundir
from trainers.contract.manifests import FORMAT_VERSION, MANIFEST
from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.files import plain_files
from trainers.files.json_files import read_json, sync_directory, write_json_atomically
from trainers.machine.os_errors import NO_SPACE, explain


class Sealing:
    """Syncs and hashes files in background threads; leaving the block cancels pending work."""

    def __init__(self) -> None:
        # Two threads, so that syncing to disk and hashing overlap.
        self._threads = ThreadPoolExecutor(2)
        self._pending: dict[Path, tuple[Future[None], Future[str]]] = {}

    def __enter__(self) -> Sealing:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def begin(self, path: Path) -> None:
        """Start to sync and hash a file that will not change any more."""
        if path not in self._pending:
            self._pending[path] = (
                self._threads.submit(_sync_file, path),
                self._threads.submit(sha256_of, path),
            )

    def finish(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Sync every file below a folder; return size and SHA-256 of each, by its relative name.

        Raises:
            OSError: if a file cannot be synced or read.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in paths:
            self.begin(path)
        files_by_name = {}
        for path in paths:
            synced, sha256 = self._pending[path]
            synced.result()
            name = path.relative_to(folder).as_posix()
            files_by_name[name] = {"size_bytes": path.stat().st_size, "sha256": sha256.result()}
        return files_by_name


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Reasons of checkpoints that a user requested: only a user deletes them.
RETAINED_REASONS = frozenset({"button"})
# Reasons of saves after which a run ends.
FINAL_REASONS = frozenset({"stop", "end"})


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged or does not belong to this run."""


class NoSpaceError(CheckpointError):
    """A checkpoint was not written because the disk, the quota or the run's disk share is full."""


class PeersGoneError(CheckpointError):
    """A checkpoint was not written because the connection to other ranks broke."""


def partial_path(run: RunDirectory, step: int) -> Path:
    """Return the temporary path of a checkpoint that is being written."""
    return run.checkpoints / f".step_{step}.partial"


def final_path(run: RunDirectory, step: int) -> Path:
    """Return the path of a complete checkpoint."""
    return run.checkpoints / f"step_{step}"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain values."""
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def publish(run: RunDirectory, step: int, metadata: Mapping[str, Any], files: Mapping[str, Any]) -> int:
    """Complete a checkpoint with its manifest and rename it; return its size in bytes."""
    partial, target = partial_path(run, step), final_path(run, step)
    previous = next((item for item in run.list_checkpoints() if item.step == step), None)
    if previous is not None and previous.reason in RETAINED_REASONS:
        # A user requested this step before the run was resumed.
        metadata = {**metadata, "reason": previous.reason}
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "saved_unix_s": _later_than_all(run, time.time()),
        **metadata,
        "files": dict(files),
    }
    for folder in partial.rglob("*/"):
        sync_directory(folder)
    write_json_atomically(partial / MANIFEST, manifest)
    if os.path.lexists(target):
        # After a resume from an older checkpoint, this step is reached a second time.
        replaced = target.with_name(f".{target.name}.replaced")
        plain_files.remove(replaced)
        target.rename(replaced)
        partial.rename(target)
        plain_files.remove(replaced)
    else:
        partial.rename(target)
    sync_directory(target.parent)
    return sum(entry["size_bytes"] for entry in files.values())


def _later_than_all(run: RunDirectory, now: float) -> float:
    """Return a timestamp later than that of every other checkpoint, even if the clock was set back."""
    latest_unix_s = max((item.saved_unix_s for item in run.list_checkpoints()), default=0.0)
    return max(now, math.nextafter(latest_unix_s, math.inf))


def remove_leftovers(run: RunDirectory) -> None:
    """Delete the leftovers of a killed save; restore a checkpoint that was being replaced."""
    for replaced in run.checkpoints.glob(".step_*.replaced"):
        target = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not os.path.lexists(target) and not replaced.is_symlink():
            replaced.rename(target)
    for leftover in run.checkpoints.glob(".step_*"):
        plain_files.remove(leftover)


def retire(
    run: RunDirectory, just_saved: int, *, keep_last: int | None, best_step: int | None
) -> tuple[int, ...]:
    """Delete old checkpoints; return their steps.

    Keeps the checkpoint just saved, the best one, requested ones, and the latest `keep_last` others (None:
    all).
    """
    removed_steps = []
    for item in _list_to_retire(run, just_saved, keep_last=keep_last, best_step=best_step):
        # Rename before deleting, so that a reader finds a complete checkpoint or none.
        removed_path = item.path.with_name(f".{item.path.name}.removed")
        item.path.rename(removed_path)
        shutil.rmtree(removed_path, ignore_errors=True)
        removed_steps.append(item.step)
    return tuple(removed_steps)


def _list_to_retire(
    run: RunDirectory, just_saved: int, *, keep_last: int | None, best_step: int | None, num_new: int = 0
) -> list[Checkpoint]:
    """Return the checkpoints that `retire` deletes, if `num_new` more are about to be saved."""
    if keep_last is None:
        return []
    # By time of saving: after a resume from an older checkpoint, the highest step is not the latest.
    by_age = sorted(
        run.list_checkpoints(), key=lambda item: (item.step == just_saved, item.saved_unix_s, item.step)
    )
    automatic = [item for item in by_age if item.reason not in RETAINED_REASONS]
    oldest = automatic[: max(0, len(automatic) + num_new - keep_last)]
    return [item for item in oldest if item.step not in (best_step, just_saved)]


def require_space(
    run: RunDirectory,
    step: int,
    size_bytes: int,
    reason: str,
    *,
    keep_last: int | None,
    best_step: int | None,
    max_bytes: int | None,
) -> None:
    """Refuse a checkpoint that would use the reserve of the disk, or exceed the run's share of it.

    The last save of a run may use half of the reserve.

    Args:
        size_bytes: approximate size of the new checkpoint.
        max_bytes: limit for all checkpoints of the run; None is no limit.
    Raises:
        NoSpaceError: with the free or used space, and advice.
    """
    free_bytes, reserve_bytes = rundir.disk_space(run.path)
    if reason in FINAL_REASONS:
        reserve_bytes //= 2
    if free_bytes - size_bytes < reserve_bytes:
        raise NoSpaceError(
            f"the disk of {run.path} has {_size(free_bytes)} free, the checkpoint needs {_size(size_bytes)}, "
            f"and {_size(reserve_bytes)} are reserved for the page and other runs: delete runs that you no "
            "longer need and empty the bin"
        )
    if max_bytes is None or reason in FINAL_REASONS:
        return
    removed_steps = {
        item.step for item in _list_to_retire(run, step, keep_last=keep_last, best_step=best_step, num_new=1)
    }
    retained_bytes = sum(
        item.size_bytes for item in run.list_checkpoints() if item.step not in removed_steps | {step}
    )
    if retained_bytes + size_bytes > max_bytes:
        raise NoSpaceError(
            f"the checkpoints of this run would take {_size(retained_bytes + size_bytes)}, but its share of "
            f"the disk is {_size(max_bytes)}: keep fewer checkpoints (keep_last_checkpoints), or save less "
            "often"
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def change_reason(run: RunDirectory, step: int, reason: str) -> None:
    """Record that an existing checkpoint was also requested, so that it is kept."""
    path = final_path(run, step) / MANIFEST
    manifest = read_json(path)
    write_json_atomically(path, {**manifest, "reason": reason})


def verify(run: RunDirectory, step: int) -> dict[str, Any]:
    """Check a checkpoint's files against the sizes and checksums of its manifest, and return the manifest.

    Raises:
        CheckpointError: naming the file that is missing or differs, and the last intact checkpoint.
    """
    checkpoints = {item.step: item for item in run.list_checkpoints()}
    if step not in checkpoints:
        steps_text = ", ".join(str(number) for number in checkpoints) or "none"
        raise CheckpointError(
            f"there is no complete checkpoint of step {step:,}; complete checkpoints: {steps_text}"
        )
    fault = manifests.find_fault(checkpoints[step])
    if fault is None:
        manifest: dict[str, Any] = read_json(checkpoints[step].path / MANIFEST)
        return manifest
    latest = manifests.latest_intact(run)
    advice = "none is complete" if latest is None else f"the latest complete one is step {latest.step:,}"
    raise CheckpointError(f"checkpoint step_{step}: {fault}; {advice}")


def root_cause(error: BaseException) -> str:
    """Return the root cause of a failed file operation.

    torch wraps the system's error, such as "no space left", in its own error about positions in an archive.
    """
    system_error = next((cause for cause in _causes(error) if isinstance(cause, OSError)), None)
    return str(error) or type(error).__name__ if system_error is None else explain(system_error)


def needs_space(error: BaseException) -> bool:
    """Return True if a file operation failed because the disk is full."""
    return any(
        isinstance(cause, NoSpaceError) or (isinstance(cause, OSError) and cause.errno in NO_SPACE)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
