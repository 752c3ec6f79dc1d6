"""The routes that give a run's numbers as files: one run's, or a zip of several."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from fastapi import HTTPException

from ddp_gui.background.made_file import MadeFile
from ddp_gui.background.workers import SLOW, Router
from ddp_gui.runs.exports import exports
from ddp_gui.runs.runs import RunStore
from trainers.contract.run_ids import file_stem
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_plain
from trainers.machine.os_errors import explain

Format = Literal["csv", "json", "tfevents"]
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "tfevents": "application/octet-stream",
}
MAX_IN_ZIP = 200


def make_router(store: RunStore) -> Router:
    """Return the export routes below `/live/runs`."""
    router = Router(prefix="/live/runs")

    @router.get("/{run_id}/export.{kind}")
    @SLOW.handler
    def export(run_id: str, kind: Format) -> MadeFile:
        run = _run_or_404(store, run_id)
        pieces = exports.beside([_file(store, run, kind)])
        return MadeFile(SLOW, pieces, _file_name(run, kind), MEDIA_TYPES[kind])

    @router.get("/export.zip")
    @SLOW.handler
    def export_several(ids: str, kind: Format = "csv") -> MadeFile:
        run_ids = list(dict.fromkeys(filter(None, ids.split(","))))
        if not 0 < len(run_ids) <= MAX_IN_ZIP:
            raise HTTPException(status_code=422, detail=f"ids must be 1 to {MAX_IN_ZIP} runs")
        files = []
        for number, run_id in enumerate(run_ids, start=1):
            file = _file(store, _run_or_404(store, run_id), kind)
            stem = file_stem(run_id)
            # TensorBoard takes each folder for a run. Two ids may have the same stem, hence the number.
            folder = run_id if stem == run_id else f"{number}-{stem}"
            is_in_folder = kind == "tfevents" or stem != run_id
            files.append(file | {"name": f"{folder}/{file['name']}"} if is_in_folder else file)
        rows = [store.row(run_id) for run_id in run_ids] if kind == "csv" else []
        return MadeFile(SLOW, exports.beside(files, rows), f"runs-{kind}.zip", "application/zip")

    return router


def _file(store: RunStore, run: RunDirectory, kind: Format) -> dict[str, Any]:
    """Return what a process has to know to make a run's file."""
    about: dict[str, Any] = {}
    if kind == "json":
        row = store.row(run.run_id)
        about = {name: row[name] for name in ("run_id", "name", "tags", "note", "state")}
        about["broken_on_purpose"] = row.get("mistake")
        about["config"] = run.read_config().to_json()
    return {"name": _file_name(run, kind), "run": str(run.path.absolute()), "kind": kind, "about": about}


def _file_name(run: RunDirectory, kind: Format) -> str:
    """Return what a run's file is called; one of a run that is broken on purpose says so."""
    mark = "broken-on-purpose." if run.read_config().is_broken_on_purpose else ""
    if kind == "tfevents":
        return f"events.out.tfevents.{exports.began_unix_s(run)}.{mark}{file_stem(run.run_id)}"
    return f"{file_stem(run.run_id)}.{mark}{kind}"


def _run_or_404(store: RunStore, run_id: str) -> RunDirectory:
    try:
        run = store.open(run_id)
        run.read_config()
        with contextlib.suppress(FileNotFoundError):
            open_plain(run.events).close()  # before an answer has begun that could only break off
    except (OSError, ValueError) as error:
        raise HTTPException(status_code=404, detail=explain(error)) from error
    return run
