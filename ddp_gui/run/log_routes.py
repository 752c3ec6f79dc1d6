"""The routes of a run's logs: the end of each, and a search."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from ddp_gui.background.workers import SLOW, Router
from ddp_gui.run import logs
from ddp_gui.run.stream import Cursor, view_or_404
from ddp_gui.runs.runs import RunStore

_RANK = re.compile(r"\d{1,5}", re.ASCII)
# torchrun_1 is that of the second machine; slurm is what the batch script said.
_OTHER = re.compile(r"(torchrun|supervisor)(_\d{1,5})?|slurm", re.ASCII)


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs/…/log`."""
    router = Router(prefix="/live/runs/{run_id}/log")

    def path_of(run_id: str, source: str) -> Path:
        run = view_or_404(store, run_id).run
        if _RANK.fullmatch(source):
            return run.rank_log(int(source))
        if source == "hang":
            return logs.newest_stacks(run)
        if not _OTHER.fullmatch(source):
            detail = "a log is a rank's number, torchrun, torchrun_1 (of node 1), supervisor, slurm or hang"
            raise HTTPException(status_code=404, detail=detail)
        return run.logs / f"{source}.log"

    @router.get("/{source}")
    def log(run_id: str, source: str, offset: Cursor = -1) -> dict[str, Any]:
        with _plainly():
            return logs.read(path_of(run_id, source), offset)

    @router.get("/{source}/search")
    @SLOW.handler
    def search(run_id: str, source: str, words: str) -> dict[str, Any]:
        with _plainly():
            return logs.search_beside(path_of(run_id, source), words)

    return router


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Say that a log cannot be read: it is a link, or no file."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise HTTPException(status_code=404, detail="this log cannot be read: it is no plain file") from error
