"""Log files of a run: reading, search and routes."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
from fastapi import HTTPException

from ddp_gui.background.workers import SLOW, Router, module_output
from ddp_gui.run.stream import Cursor
from ddp_gui.runs.runs import RunStore
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_plain

LOG_BYTES = 64 * 1024
# Number of bytes at the end of a log to search, which takes a fraction of a second: a log can be very long.
SEARCHED_BYTES = 64 * 1024 * 1024
MAX_DIRECT_BYTES = 2 * 1024 * 1024
MAX_LINES_FOUND = 500
MAX_WORDS = 20
MAX_LINE_BYTES = 2_000
# Longer lines are searched in chunks of this size.
MAX_LINE_READ_BYTES = 1024 * 1024


def read(path: Path, offset: int) -> dict[str, Any]:
    """Return at most 64 kB of a log from `offset` on; -1 returns its last 64 kB."""
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
    """Return the path of the latest hang's stack dump of all ranks; the file may not exist."""
    return max(run.logs.glob("hang_*.txt"), default=run.logs / "hang.txt")


def search_in_process(path: Path, words: str) -> dict[str, Any]:
    """Call `search`, in a low-priority process if the log is large, so that the page stays responsive.

    Raises:
        OSError, ValueError: if the log cannot be read.
    """
    try:
        with open_plain(path) as file:
            is_large = file.seek(0, 2) > MAX_DIRECT_BYTES
    except FileNotFoundError:
        is_large = False
    if not is_large:
        return search(path, words)
    result: dict[str, Any] = orjson.loads(b"".join(module_output("ddp_gui.run.logs", [str(path), words])))
    return result


def search(path: Path, words: str) -> dict[str, Any]:
    """Return the last lines that contain all words, ignoring case, and the number of matches.

    `is_whole` is True if the full log was searched, False if only its end.
    """
    terms = words.lower().encode("utf-8").split()[:MAX_WORDS]
    matches: deque[bytes] = deque(maxlen=MAX_LINES_FOUND)
    num_matches = 0
    try:
        with open_plain(path) as file:
            start = max(0, file.seek(0, 2) - SEARCHED_BYTES)
            file.seek(start)
            for line in iter(lambda: file.readline(MAX_LINE_READ_BYTES), b"") if terms else ():
                lower = line.lower()
                if all(term in lower for term in terms):
                    num_matches += 1
                    matches.append(line[:MAX_LINE_BYTES].rstrip(b"\r\n"))
    except FileNotFoundError:
        start = 0
    lines = [line.decode("utf-8", errors="replace") for line in matches]
    return {"lines": lines, "num_found": num_matches, "is_whole": start == 0}


Value = TypeVar("Value")
_RANK = re.compile(r"\d{1,5}", re.ASCII)
# torchrun_1 is the log of the second machine; slurm is the output of the batch script.
_OTHER_LOG = re.compile(r"(torchrun|supervisor)(_\d{1,5})?|slurm", re.ASCII)


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs/…/log`."""
    router = Router(prefix="/live/runs/{run_id}/log")

    def path_of(run_id: str, source: str) -> Path:
        run = store.view(run_id).run
        if _RANK.fullmatch(source):
            return run.rank_log(int(source))
        if source == "hang":
            return newest_stacks(run)
        if not _OTHER_LOG.fullmatch(source):
            detail = "a log is a rank's number, torchrun, torchrun_1 (of node 1), supervisor, slurm or hang"
            raise HTTPException(status_code=404, detail=detail)
        return run.logs / f"{source}.log"

    @router.get("/{source}")
    def log(run_id: str, source: str, offset: Cursor = -1) -> dict[str, Any]:
        return _read_or_404(read, path_of(run_id, source), offset)

    @router.get("/{source}/search")
    @SLOW.handler
    def search(run_id: str, source: str, words: str) -> dict[str, Any]:
        return _read_or_404(search_in_process, path_of(run_id, source), words)

    return router


def _read_or_404(
    function: Callable[[Path, Value], dict[str, Any]], path: Path, value: Value
) -> dict[str, Any]:
    """Read a log; answer 404 if it cannot be read, for example because it is a link or a directory."""
    try:
        return function(path, value)
    except (OSError, ValueError) as error:
        detail = "this log cannot be read: it is not a regular file"
        raise HTTPException(status_code=404, detail=detail) from error


if __name__ == "__main__":
    log_path, search_words = orjson.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(orjson.dumps(search(Path(log_path), search_words)))
