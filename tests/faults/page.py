"""The GUI's responses for one run, without a server: all routes that read a run's directory."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from ddp_gui.background import trainer_process
from ddp_gui.launch import launcher
from ddp_gui.plan.catalogue import CatalogueSource
from ddp_gui.run import logs, stream
from ddp_gui.runs import exports
from ddp_gui.runs.runs import RunStore, status_values
from trainers.engines import liveness

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette deprecates the HTTP client that gradio installs
    from fastapi.testclient import TestClient

LIVE = (
    "summary",
    "configuration",
    "poll",
    "view?from=0&to=50",
    "log/0",
    "log/torchrun/search?words=a",
    "stream",
)
EXPORTS = ("export.csv", "export.json", "export.tfevents")


@functools.cache
def _catalogue() -> CatalogueSource:
    """Return the catalogue, loaded before any time is measured."""
    source = CatalogueSource(trainer_process.default_cache_file("catalogue"))
    source.get()
    return source


class Page:
    """Requests everything that a user can view and collects the responses that show an error."""

    def __init__(self, runs_dir: Path) -> None:
        # The memory estimate starts another process once per page and is irrelevant here.
        needs: Any = SimpleNamespace(needs_of=lambda *_: None)
        self.store = RunStore(runs_dir, _catalogue(), needs=needs)
        app = FastAPI()
        for module in (exports, stream, logs):
            app.include_router(module.make_router(self.store))
        self._client = TestClient(app)

    def row(self, run_id: str) -> dict[str, Any] | None:
        """Return the run's row in the list."""
        return next((row for row in self.store.rows() if row["run_id"] == run_id), None)

    def status(self, run_id: str) -> dict[str, Any] | str:
        """Return the response of `/run_status`, or the text of its error."""
        try:
            view = self.store.view(run_id)
            view.catch_up()
            return status_values(view)
        except (OSError, ValueError) as error:
            return str(error)

    def stop(self, run_id: str, *, save: bool = True) -> str:
        """Stop the run as the Stop button does."""
        run = self.store.open(run_id)
        return launcher.stop(run, liveness.read_status(run), save=save)

    def said_of(self, run_id: str) -> str:
        """Return the error and the insights that the page of a run shows."""
        message = self._client.get(f"/live/runs/{run_id}/poll").json()
        return f"{message['head']['error']} {message.get('insights')}"

    def look(self, run_id: str) -> list[str]:
        """Request every live route and return the failures. A 404 with a readable message is none."""
        wrong = []
        for route in (*LIVE, *EXPORTS):
            try:
                answer = self._client.get(f"/live/runs/{run_id}/{route}")
            except Exception as error:  # noqa: BLE001 - a user would see an error page for any exception
                wrong.append(f"{route}: {type(error).__name__}: {error}")
                continue
            if answer.status_code == 404 and "Traceback" not in answer.text:
                continue
            if answer.status_code != 200:
                wrong.append(f"{route}: {answer.status_code} {answer.text[:200]}")
        return wrong
