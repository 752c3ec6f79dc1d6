"""Tells whether the code of the training half has changed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from trainers.files.paths import REPOSITORY


def of_code(watched: Iterable[Path] = ()) -> str:
    """Return the mark of the training half's files and of further ones: path, time and size of each."""
    files = [*(REPOSITORY / "trainers").rglob("*.py"), *(REPOSITORY / "assets" / "data").rglob("*"), *watched]
    digest = hashlib.sha256(sys.executable.encode())
    for path in sorted(set(files)):
        try:
            about = path.stat()
            digest.update(f"{path}:{about.st_mtime_ns}:{about.st_size}\n".encode())
        except OSError:
            digest.update(f"{path}:absent\n".encode())
    return digest.hexdigest()
