"""The routes of a run's recorded steps: which there are, one of them, and one as a trace to download."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from fastapi.responses import Response

from ddp_gui.background.workers import SLOW, Router
from ddp_gui.run import chrome_trace
from ddp_gui.run.stream import view_or_404
from ddp_gui.runs.runs import RunStore
from trainers.contract import recordings
from trainers.contract.run_ids import file_stem


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs/…/recordings`."""
    router = Router(prefix="/live/runs/{run_id}/recordings")

    def read(run_id: str, step: int, *, as_trace: bool = False) -> bytes:
        try:
            return chrome_trace.encoded(view_or_404(store, run_id).run, step, as_trace=as_trace)
        except FileNotFoundError as error:
            detail = f"run {run_id} has no recording that begins with step {step:,}"
            raise HTTPException(status_code=404, detail=detail) from error
        except OSError as error:
            raise HTTPException(status_code=404, detail="this recording cannot be read") from error
        except ValueError as error:
            raise HTTPException(status_code=422, detail=str(error)) from error

    @router.get("")
    def listed(run_id: str) -> dict[str, Any]:
        found = recordings.list_recordings(view_or_404(store, run_id).run)
        return {
            "recordings": [
                {"step": each.step, "size_bytes": each.size_bytes, "recorded_unix_s": each.recorded_unix_s}
                for each in found
            ]
        }

    @router.get("/{step}")
    @SLOW.handler
    def one(run_id: str, step: int) -> Response:
        return Response(read(run_id, step), media_type="application/json")

    @router.get("/{step}/trace.json")
    @SLOW.handler
    def trace(run_id: str, step: int) -> Response:
        content = read(run_id, step, as_trace=True)
        headers = {
            "Content-Disposition": f'attachment; filename="{file_stem(run_id)}-step-{step}.trace.json"',
            "Cache-Control": "no-store",
        }
        return Response(content, media_type="application/json", headers=headers)

    return router
