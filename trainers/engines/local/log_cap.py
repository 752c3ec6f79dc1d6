"""Keeps the logs of a run from filling the disk: of one that grows without bounds the newest part stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainers.machine.os_errors import explain

CHECK_EVERY_S = 0.5
MAX_BYTES = 64 * 1024 * 1024
KEPT_BYTES = 8 * 1024 * 1024


class LogCap:
    """Looks at the logs of one run now and then; a rank that prints without end costs no more than this."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checked_at = 0.0

    def check(self) -> None:
        """Cut the logs that are too long, at most twice a second."""
        if time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        self._checked_at = time.monotonic()
        try:
            with os.scandir(self._folder) as entries:
                long = [Path(e.path) for e in entries if _is_log(e) and e.stat().st_size > MAX_BYTES]
            for path in long:
                cut(path)
        except OSError as error:
            print(f"the logs cannot be inspected: {explain(error)}", flush=True)


def cut(path: Path) -> None:
    """Keep the end of a log that somebody goes on writing, and say in it what is missing.

    The writer appends, so it goes on at the new end; what it writes in between the look and the cut is lost.
    What stays is written over the beginning first: that takes no room, and nothing can get in before it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        kept = os.pread(fd, KEPT_BYTES, max(0, size - KEPT_BYTES))
        kept = kept[kept.find(b"\n") + 1 :]
        missing = f"[{(size - len(kept)) / 1e6:,.0f} MB of this log were removed here to save disk space]\n"
        os.ftruncate(fd, os.pwrite(fd, missing.encode() + kept, 0))
    finally:
        os.close(fd)


def _is_log(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".log") and entry.is_file(follow_symlinks=False)
