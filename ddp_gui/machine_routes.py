"""The live route of the Machine page: one report, asked for every two seconds while the page is seen."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ddp_gui.machine_report.report import MachineReport


def make_router(report: MachineReport) -> APIRouter:
    """Return the route `/live/machine`."""
    router = APIRouter(prefix="/live")

    @router.get("/machine")
    def look() -> dict[str, Any]:
        return report.look()

    return router
