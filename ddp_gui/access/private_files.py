"""Files that only the account of the server may read."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from trainers.contract.rundir import sync_directory

Mark = tuple[int, int, int]


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file that nobody else may read; a reader sees the old or the new one, never a part.

    Raises:
        OSError: when it cannot be written.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # Never readable by others, not even for a moment.
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync_directory(path.parent)


def mark_of(path: Path) -> Mark | None:
    """Return what tells a file from what it was before; None where there is none."""
    try:
        about = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
