"""The named endpoints of the list of runs: rename, tag and note, delete, restore."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddp_gui.auth import owners, rights
from ddp_gui.gradio_routes.endpoints import register
from ddp_gui.launch.user_errors import in_plain_words
from ddp_gui.runs import bin as run_bin
from ddp_gui.runs import notes
from ddp_gui.runs.runs import RunStore


class RunAdminApi:
    """Changes to existing runs; results are JSON values."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._runs_dir = store.runs_dir

    def edit_run(
        self, run_id: str, name: str | None = None, tags: list[str] | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Rename a run, tag it, write a note on it; null leaves a value unchanged."""

        def edit() -> dict[str, Any]:
            run = self._store.open_to_change(run_id)
            written = notes.changed(notes.read(run), name=name, tags=tags, note=note)
            notes.write(run, written)
            row = self._store.row(run_id)
            return {field: row[field] for field in ("run_id", "name", "tags", "note")} | {"message": "Saved."}

        return in_plain_words(edit)

    def delete_runs(self, run_ids: list[str]) -> dict[str, Any]:
        """Move ended runs to the bin; all of them, or none where one cannot be."""

        def delete() -> dict[str, Any]:
            for run_id in _ids(run_ids):
                self._store.open_to_change(run_id)
            moved = run_bin.delete(self._runs_dir, run_ids)
            self._store.read_again(run_id for run_id, _ in moved)
            return {
                "deleted": [{"run_id": run_id, "bin_id": bin_id} for run_id, bin_id in moved],
                "message": f"{_runs(len(moved))} moved to the bin.",
            }

        return in_plain_words(delete)

    def restore_runs(self, run_ids: list[str]) -> dict[str, Any]:
        """Bring runs back from the bin, by their ids in it."""

        def restore() -> dict[str, Any]:
            self._require_change_in_bin(_ids(run_ids))
            moved = run_bin.restore(self._runs_dir, run_ids)
            self._store.read_again(run_id for _, run_id in moved)
            return {
                "restored": [{"bin_id": bin_id, "run_id": run_id} for bin_id, run_id in moved],
                "message": f"{_runs(len(moved))} restored.",
            }

        return in_plain_words(restore)

    def list_bin(self) -> list[dict[str, Any]]:
        """List the deleted runs that the current user may see, deleted last first."""
        found = in_plain_words(lambda: run_bin.content(self._runs_dir))
        return [asdict(item) for item in found if self._store.may_see(item.owner)]

    def empty_bin(self, run_ids: list[str] | None = None) -> dict[str, Any]:
        """Delete runs in the bin permanently: all that the current user may delete, or these."""

        def empty() -> dict[str, Any]:
            chosen = self._own_in_bin() if run_ids is None else _ids(run_ids)
            self._require_change_in_bin(chosen)
            num_runs, size_bytes = run_bin.empty(self._runs_dir, chosen)
            return {
                "num_runs": num_runs,
                "size_bytes": size_bytes,
                "message": f"{_runs(num_runs)} deleted for good.",
            }

        return in_plain_words(empty)

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        register(
            self.edit_run,
            self.delete_runs,
            self.restore_runs,
            self.list_bin,
            self.empty_bin,
        )

    def _own_in_bin(self) -> list[str]:
        return [
            bin_id
            for bin_id in run_bin.ids(self._runs_dir)
            if rights.may_change(owners.owner_of(run_bin.find(self._runs_dir, bin_id)))
        ]

    def _require_change_in_bin(self, bin_ids: list[str]) -> None:
        for bin_id in bin_ids:
            run = run_bin.find(self._runs_dir, bin_id)
            owner = owners.owner_of(run)
            if not self._store.may_see(owner):
                raise run_bin.not_in_bin(bin_id)
            rights.require_change(bin_id, owner)


def _ids(run_ids: Any) -> list[str]:
    if not isinstance(run_ids, list) or not run_ids:
        raise ValueError(f"run_ids is {run_ids!r}, but allowed is: a list of ids of runs, at least one")
    return run_ids


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
