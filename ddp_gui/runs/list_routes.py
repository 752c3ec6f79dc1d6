"""The routes of the list of runs: its rows as they change, and several runs beside each other."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import HTTPException, Request
from fastapi.responses import Response

from ddp_gui.background.workers import Router
from ddp_gui.runs.comparison import differing_fields
from ddp_gui.runs.listing import Changes
from ddp_gui.runs.runs import RunStore
from trainers.contract import events

MAX_COMPARED = 8
COMPRESSED_FROM_BYTES = 10_000


def make_router(store: RunStore, places_in_queue: Callable[[], Mapping[str, int]]) -> Router:
    """Return the routes directly below `/live/runs`."""
    router = Router(prefix="/live/runs")

    @router.get("")
    def list_runs(request: Request, since: int | None = None, live: bool = False) -> Response:
        if since is None:
            return _json(request, store.rows())
        message = _message(store.changes(since), only_live=live)
        places = {run_id: place for run_id, place in places_in_queue().items() if store.is_shown(run_id)}
        return _json(request, message | ({"places": places} if places else {}))

    @router.get("/compare")
    def compare(request: Request, ids: str) -> Response:
        run_ids = list(dict.fromkeys(filter(None, ids.split(","))))
        if len(run_ids) > MAX_COMPARED:
            raise HTTPException(status_code=422, detail=f"at most {MAX_COMPARED} runs can be compared")
        rows, configs, missing = [], [], []
        for run_id in run_ids:
            try:
                configs.append(store.open(run_id).read_config())
                rows.append(store.row(run_id))
            except (OSError, ValueError):
                missing.append(run_id)
        fields = differing_fields(configs) if configs else []
        return _json(request, {"runs": rows, "fields": fields, "missing": missing})

    return router


def _message(changes: Changes, *, only_live: bool) -> dict[str, Any]:
    rows, gone = changes.rows, list(changes.gone)
    if only_live:
        gone = gone + [row["run_id"] for row in rows if row["state"] not in events.LIVE_STATES]
        rows = [row for row in rows if row["state"] in events.LIVE_STATES]
    return {
        "version": changes.version,
        "is_whole": changes.is_whole,
        "rows": rows,
        "gone": [] if changes.is_whole else gone,
        "num_unread": changes.num_unread,
    }


def _json(request: Request, value: Any) -> Response:
    body = orjson.dumps(value)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) >= COMPRESSED_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)
