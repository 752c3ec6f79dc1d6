"""Folders that may go while they are read: a process ends, a checkpoint gets its name.

`Path.glob` raises where a folder goes between two of its steps (until Python 3.13), and whoever asks in a
loop meets that moment in the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def names_in(folder: str | Path) -> list[str]:
    """Return the names in a folder; none where it is not there any more, or hidden."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, as far as they are there."""
    for path, _, names in os.walk(folder):
        for name in names:
            yield Path(path, name)
