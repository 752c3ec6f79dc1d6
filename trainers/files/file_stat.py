"""What tells that a run's files have changed, at the price of a look at the directory."""

from __future__ import annotations

import os
import time

FileStat = tuple[int, int, int]
FileStats = tuple[FileStat | None, ...]

# The folder's own time changes when a file in it is replaced: status, notes, a configuration that is resumed.
WATCHED = ("config.json", "", "events.jsonl")
# A file system may give two changes shortly after each other the same time.
SETTLED_AFTER_S = 2.0


def stats_of(path: str) -> FileStats:
    """Return the marks of a run's configuration, folder and events."""
    return tuple(stat_of(f"{path}/{name}") for name in WATCHED)


def stat_of(path: str) -> FileStat | None:
    """Return what tells a file from what it was before; None where there is none, or none we may see."""
    try:
        about = os.stat(path)  # noqa: PTH116 - thousands of them: without a Path for each
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def are_settled(marks: FileStats) -> bool:
    """Tell whether a change from now on would give the files other marks."""
    newest_ns = max(mark[2] for mark in marks if mark is not None)
    return time.time_ns() - newest_ns > SETTLED_AFTER_S * 1e9


def settled_stat_of(path: str) -> FileStat | None:
    """Return the mark of a folder, None while it cannot be relied on."""
    mark = stat_of(path)
    return mark if mark is not None and are_settled((mark,)) else None
