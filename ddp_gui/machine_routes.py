"""The live route of the Machine page: one report, asked for every two seconds while the page is seen."""

from __future__ import annotations

from typing import Any

from ddp_gui.door.workers import Router
from ddp_gui.machine_report.report import MachineReport
from ddp_gui.runs import RunStore
from ddp_gui.shown_runs import without_hidden


def make_router(report: MachineReport, store: RunStore) -> Router:
    """Return the route `/live/machine`."""
    router = Router(prefix="/live")

    @router.get("/machine")
    def look() -> dict[str, Any]:
        return without_hidden(report.look(), store.is_shown)

    return router
