"""Keeps what a person uploads in a folder beside the runs, under a name of ours.

Gradio puts what arrives into a folder only the server can read; from there it is moved, or tidied away.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
import time
from pathlib import Path

KINDS = (".zip", ".csv", ".tsv", ".parquet", ".txt")
MAX_BYTES = 2 * 1024**3
MAX_KEPT_BYTES = 20 * 1024**3
LEFT_FREE_BYTES = 1024**3
FORGOTTEN_AFTER_S = 3600.0
_INCOMING = ".incoming"


def folder_beside(runs_dir: Path) -> Path:
    """Return the folder that holds what people uploaded."""
    return runs_dir.resolve().parent / "uploads"


def make_incoming(folder: Path) -> Path:
    """Make the folder in which uploads arrive, closed to everybody else on this machine."""
    incoming = folder / _INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    incoming.chmod(0o700)
    return incoming


def keep(uploaded: str, incoming: Path, folder: Path) -> Path:
    """Move an uploaded file into `folder` and return where it is now.

    Raises:
        ValueError: when it was not uploaded, is not of a kind that can be trained on, or there is no room.
    """
    source = _arrived(uploaded, incoming)
    if source.suffix.lower() not in KINDS:
        raise ValueError(
            f"a file of kind {source.suffix[:40] or 'none'} cannot be used; one of {', '.join(KINDS)} can"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if _size_bytes(folder) + source.stat().st_size > MAX_KEPT_BYTES:
        raise ValueError(
            f"there is no room for it: the uploads kept here may be {MAX_KEPT_BYTES // 1024**3} GiB in all. "
            "Ask whoever looks after this machine to delete what is not needed"
        )
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", source.stem)[:60].strip("-_") or "data"
    number = 0
    while True:
        target = folder / f"{stem}{f'-{number}' if number else ''}{source.suffix.lower()}"
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            number += 1
            continue
        shutil.move(source, target)
        return target.resolve()


def has_room(incoming: Path, size_bytes: int) -> bool:
    """Tell whether an upload of this size may begin: what has not been taken yet counts, and the disk."""
    free_bytes = shutil.disk_usage(incoming).free - size_bytes
    return free_bytes > LEFT_FREE_BYTES and _size_bytes(incoming) + size_bytes <= MAX_KEPT_BYTES


def tidy(incoming: Path, now_unix_s: float | None = None) -> None:
    """Delete what arrived more than an hour ago and was not taken: another page, a closed tab."""
    oldest = (now_unix_s or time.time()) - FORGOTTEN_AFTER_S
    for path in sorted(incoming.rglob("*"), reverse=True):
        # What somebody takes meanwhile is not there any more.
        with contextlib.suppress(FileNotFoundError):
            about = path.lstat()
            if about.st_mtime >= oldest:
                continue
            if not stat.S_ISDIR(about.st_mode):
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()


def _arrived(uploaded: str, incoming: Path) -> Path:
    """Return the file that was uploaded; a caller may send any path, and nothing else may be moved."""
    source, inside = Path(uploaded), incoming.resolve()
    if not source.resolve().is_relative_to(inside) or source.is_symlink() or not source.is_file():
        raise ValueError("this file was not uploaded: choose it again")
    return source


def _size_bytes(folder: Path) -> int:
    size_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.lstat().st_size
    return size_bytes
