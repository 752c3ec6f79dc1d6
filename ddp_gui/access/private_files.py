"""Files that only the account of the server may read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.contract.json_files import write_json_atomically

Mark = tuple[int, int, int]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file that nobody else may read; a reader sees the old or the new one, never a part.

    Raises:
        OSError: when it cannot be written.
    """
    write_json_atomically(path, value, mode=0o600)


def mark_of(path: Path) -> Mark | None:
    """Return what tells a file from what it was before; None where there is none."""
    try:
        about = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
