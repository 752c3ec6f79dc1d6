"""What tells that a run's files have changed, at the price of a look at the directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ddp_gui import remarks

Mark = tuple[int, int, int]
Marks = tuple[Mark | None, ...]

WATCHED = ("config.json", "status.json", "events.jsonl", remarks.FILE, "data.json")
# A file system may give two changes shortly after each other the same time.
SETTLED_AFTER_S = 2.0


def marks_of(path: Path) -> Marks:
    """Return the marks of a run's files."""
    return tuple(mark_of(f"{path}/{name}") for name in WATCHED)


def mark_of(path: str) -> Mark | None:
    """Return what tells a file from what it was before; None where there is none."""
    try:
        about = os.stat(path)  # noqa: PTH116 - thousands of them: without a Path for each
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def of_config(marks: Marks) -> tuple[Mark | None, Mark | None]:
    """Return the marks of what a run was started with."""
    return marks[WATCHED.index("config.json")], marks[WATCHED.index("data.json")]


def are_settled(marks: Marks) -> bool:
    """Tell whether a change from now on would give the files other marks."""
    newest_ns = max(mark[2] for mark in marks if mark is not None)
    return time.time_ns() - newest_ns > SETTLED_AFTER_S * 1e9


def settled_mark_of(path: Path) -> Mark | None:
    """Return the mark of a folder, None while it cannot be relied on."""
    mark = mark_of(str(path))
    return mark if mark is not None and are_settled((mark,)) else None
