"""Reads a run's logs: the end, new output, and a search."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import Any

import orjson

from ddp_gui.background.low_priority import printed_by
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_plain

LOG_BYTES = 64 * 1024
# A log can grow without bounds; this much of its end is searched, which takes a fraction of a second.
SEARCHED_BYTES = 64 * 1024 * 1024
SEARCHED_HERE_BYTES = 2 * 1024 * 1024
MAX_LINES_FOUND = 500
MAX_WORDS = 20
MAX_LINE_BYTES = 2_000
# A longer line is searched in pieces of this.
MAX_LINE_READ_BYTES = 1024 * 1024


def read(path: Path, offset: int) -> dict[str, Any]:
    """Return at most 64 kB of a log from `offset` on; -1 is its end."""
    try:
        with open_plain(path) as file:
            size = file.seek(0, 2)
            start = max(0, size - LOG_BYTES) if offset < 0 or offset > size else offset
            file.seek(start)
            chunk = file.read(LOG_BYTES)
    except FileNotFoundError:
        return {"text": "", "offset": 0, "size": 0}
    return {"text": chunk.decode("utf-8", errors="replace"), "offset": start + len(chunk), "size": size}


def newest_stacks(run: RunDirectory) -> Path:
    """Return the file with every rank's stack from the newest hang; it may not exist."""
    return max(run.logs.glob("hang_*.txt"), default=run.logs / "hang.txt")


def search_beside(path: Path, words: str) -> dict[str, Any]:
    """Do what `search` does; for a large log in a low-priority process, so that clicks stay fast.

    Raises:
        OSError, ValueError: when it cannot be read.
    """
    try:
        with open_plain(path) as file:
            is_long = file.seek(0, 2) > SEARCHED_HERE_BYTES
    except FileNotFoundError:
        is_long = False
    if not is_long:
        return search(path, words)
    found: dict[str, Any] = orjson.loads(b"".join(printed_by("ddp_gui.run.logs", [str(path), words])))
    return found


def search(path: Path, words: str) -> dict[str, Any]:
    """Return the newest lines in which all words occur, with how many there are.

    Case does not matter. `is_whole` tells whether the whole log was searched or only its end.
    """
    wanted = words.lower().encode("utf-8").split()[:MAX_WORDS]
    found: deque[bytes] = deque(maxlen=MAX_LINES_FOUND)
    count = 0
    try:
        with open_plain(path) as file:
            start = max(0, file.seek(0, 2) - SEARCHED_BYTES)
            file.seek(start)
            for line in iter(lambda: file.readline(MAX_LINE_READ_BYTES), b"") if wanted else ():
                lower = line.lower()
                if all(word in lower for word in wanted):
                    count += 1
                    found.append(line[:MAX_LINE_BYTES].rstrip(b"\r\n"))
    except FileNotFoundError:
        start = 0
    lines = [line.decode("utf-8", errors="replace") for line in found]
    return {"lines": lines, "num_found": count, "is_whole": start == 0}


if __name__ == "__main__":
    asked_path, asked_words = orjson.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(orjson.dumps(search(Path(asked_path), asked_words)))
