"""The routes that give a run's numbers as files: one run's, or a zip of several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import StreamingResponse

from ddp_gui import exports
from ddp_gui.exports import Pieces
from ddp_gui.runs import RunStore
from trainers.contract.rundir import RunDirectory

Format = Literal["csv", "json", "tfevents"]
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "tfevents": "application/octet-stream",
}
MAX_IN_ZIP = 200


def make_router(store: RunStore) -> APIRouter:
    """Return the export routes below `/live/runs`."""
    router = APIRouter(prefix="/live/runs")

    @router.get("/{run_id}/export.{kind}")
    def export(run_id: str, kind: Format) -> StreamingResponse:
        run = _run_or_404(store, run_id)
        return _attached(_pieces(store, run, kind)(), _file_name(run, kind), MEDIA_TYPES[kind])

    @router.get("/export.zip")
    def export_several(ids: str, kind: Format = "csv") -> StreamingResponse:
        run_ids = list(dict.fromkeys(filter(None, ids.split(","))))
        if not 0 < len(run_ids) <= MAX_IN_ZIP:
            raise HTTPException(status_code=422, detail=f"ids must be 1 to {MAX_IN_ZIP} runs")
        files: list[tuple[str, Callable[[], Pieces]]] = []
        for run_id in run_ids:
            run = _run_or_404(store, run_id)
            # TensorBoard takes each folder for a run.
            name = f"{run_id}/{_file_name(run, kind)}" if kind == "tfevents" else _file_name(run, kind)
            files.append((name, _pieces(store, run, kind)))
        if kind == "csv":
            rows = [store.row(run_id) for run_id in run_ids]
            files.insert(0, ("runs.csv", lambda: iter([exports.overview(rows)])))
        return _attached(exports.zip_pieces(files), f"runs-{kind}.zip", "application/zip")

    return router


def _pieces(store: RunStore, run: RunDirectory, kind: Format) -> Callable[[], Pieces]:
    if kind == "csv":
        return partial(exports.csv_pieces, run)
    if kind == "tfevents":
        return partial(exports.tfevents_pieces, run)
    row = store.row(run.run_id)
    about: dict[str, Any] = {name: row[name] for name in ("run_id", "name", "tags", "note", "state")}
    return partial(exports.json_pieces, run, about | {"config": run.read_config().to_json()})


def _file_name(run: RunDirectory, kind: Format) -> str:
    if kind == "tfevents":
        return f"events.out.tfevents.{exports.began_unix_s(run)}.{run.run_id}"
    return f"{run.run_id}.{kind}"


def _attached(pieces: Pieces, name: str, media_type: str) -> StreamingResponse:
    # A run's id is plain letters: it can stand in the header as it is.
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(pieces, media_type=media_type, headers=headers)


def _run_or_404(store: RunStore, run_id: str) -> RunDirectory:
    try:
        run = store.open(run_id)
        run.read_config()
    except (OSError, ValueError) as error:
        raise HTTPException(status_code=404, detail=str(error)) from error
    return run
