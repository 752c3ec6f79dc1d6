"""The routes of the Machine page: one report, polled every two seconds, and the file of a check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from ddp_gui.background.made_file import MadeFile
from ddp_gui.background.workers import SLOW, Router
from ddp_gui.machine.machine_check import MachineChecks
from ddp_gui.machine.report import MachineReport
from ddp_gui.machine.shown_runs import without_hidden
from ddp_gui.runs.runs import RunStore
from trainers.files.private_files import open_own
from trainers.machine.os_errors import explain

PIECE_BYTES = 256 * 1024


def make_router(report: MachineReport, store: RunStore, checks: MachineChecks) -> Router:
    """Return the routes below `/live/machine`."""
    router = Router(prefix="/live")

    @router.get("/machine")
    def machine() -> dict[str, Any]:
        return without_hidden(report.sample(), store.is_shown)

    @router.get("/machine/check/{check_id}/report.txt")
    @SLOW.handler
    def report_of_check(check_id: str) -> MadeFile:
        try:
            path = checks.report(check_id)
            open_own(path).close()  # before the response has begun, after which it could only be aborted
        except (OSError, ValueError) as error:
            raise HTTPException(status_code=404, detail=explain(error)) from error
        return MadeFile(SLOW, _pieces(path), f"machine-check-{check_id}.txt", "text/plain; charset=utf-8")

    return router


def _pieces(path: Path) -> Iterator[bytes]:
    with open_own(path) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
