"""Endpoints and routes of the list of runs."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from fastapi import HTTPException, Request
from fastapi.responses import Response

from ddp_gui.auth import rights
from ddp_gui.background.workers import Router
from ddp_gui.operations import OWNER, operation
from ddp_gui.runs import bin as run_bin
from ddp_gui.runs import listing
from ddp_gui.runs.listing import Changes
from ddp_gui.runs.runs import RunStore
from trainers.contract import config as config_module
from trainers.contract import events
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory


def differing_fields(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Return the fields whose values differ between configurations, except for the run's name."""
    raw_configs = [config.to_json() for config in configs]
    settings = config_module.settings()
    differing = []
    for name in dict.fromkeys(name for raw in raw_configs for name in raw if name != "schema_version"):
        values = [raw.get(name) for raw in raw_configs]
        if name != "name" and any(value != values[0] for value in values):
            # An option that only a plug-in declares has no label in the settings.
            label, help_text = (settings[name].label, settings[name].help) if name in settings else (name, "")
            differing.append({"field": name, "label": label, "help": help_text, "values": values})
    return differing


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


class RunAdminApi:
    """Operations on existing runs, and the settings of the class. Results are JSON values."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._runs_dir = store.runs_dir

    @operation(run="change")
    def edit_run(
        self,
        run: RunDirectory,
        name: str | None = None,
        tags: list[str] | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Rename or tag a run, or edit its note; null leaves a value unchanged."""
        notes = listing.change_notes(listing.read_notes(run), name=name, tags=tags, note=note)
        listing.write_notes(run, notes)
        row = self.store.listing.row(run.run_id)
        return {field: row[field] for field in ("run_id", "name", "tags", "note")} | {"message": "Saved."}

    @operation(method_checks=OWNER)
    def delete_runs(self, run_ids: list[str]) -> dict[str, Any]:
        """Move ended runs to the bin; if one of the runs cannot be moved, none is moved."""
        for run_id in _ids(run_ids):
            self.store.open(run_id, to_change=True)
        moved = run_bin.delete(self._runs_dir, run_ids)
        self.store.read_again(run_id for run_id, _ in moved)
        return {
            "deleted": [{"run_id": run_id, "bin_id": bin_id} for run_id, bin_id in moved],
            "message": f"{listing.runs_text(len(moved))} moved to the bin.",
        }

    @operation(method_checks=OWNER)
    def restore_runs(self, run_ids: list[str]) -> dict[str, Any]:
        """Restore runs from the bin, by their ids in the bin."""
        self._require_change_in_bin(_ids(run_ids))
        moved = run_bin.restore(self._runs_dir, run_ids)
        self.store.read_again(run_id for _, run_id in moved)
        return {
            "restored": [{"bin_id": bin_id, "run_id": run_id} for bin_id, run_id in moved],
            "message": f"{listing.runs_text(len(moved))} restored.",
        }

    @operation()
    def list_bin(self) -> list[dict[str, Any]]:
        """List the deleted runs that the current user can see, most recently deleted first."""
        binned = run_bin.content(self._runs_dir)
        return [asdict(item) for item in binned if self.store.may_see(item.owner)]

    @operation(method_checks=OWNER)
    def empty_bin(self, run_ids: list[str] | None = None) -> dict[str, Any]:
        """Permanently delete runs in the bin; without ids, all runs that the current user can delete."""
        chosen = self._own_in_bin() if run_ids is None else _ids(run_ids)
        self._require_change_in_bin(chosen)
        num_runs, size_bytes = run_bin.empty(self._runs_dir, chosen)
        return {
            "num_runs": num_runs,
            "size_bytes": size_bytes,
            "message": f"{listing.runs_text(num_runs)} deleted permanently.",
        }

    @operation(method_checks="all; changes: teacher")
    def class_settings(self, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the class settings, after applying a teacher's changes, if any."""
        settings = self.store.class_settings
        if not changes:
            return asdict(settings.read())
        rights.require_teacher("change the settings of the class")
        return asdict(settings.change(**changes))

    def _own_in_bin(self) -> list[str]:
        return [
            bin_id
            for bin_id in run_bin.ids(self._runs_dir)
            if rights.may_change(rights.owner_of(run_bin.find(self._runs_dir, bin_id)))
        ]

    def _require_change_in_bin(self, bin_ids: list[str]) -> None:
        for bin_id in bin_ids:
            run = run_bin.find(self._runs_dir, bin_id)
            owner = rights.owner_of(run)
            if not self.store.may_see(owner):
                raise run_bin.not_in_bin(bin_id)
            rights.require_change(bin_id, owner)


def _ids(run_ids: Any) -> list[str]:
    if not isinstance(run_ids, list) or not run_ids:
        raise ValueError(f"run_ids is {run_ids!r}; allowed: a list of at least one run id")
    return run_ids
