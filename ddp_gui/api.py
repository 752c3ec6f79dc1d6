"""The named endpoints: what every click does, for the page and for `gradio_client` alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gradio as gr

from ddp_gui import launcher, machine, plan
from ddp_gui.catalogue import CatalogueError
from ddp_gui.launcher import LaunchError
from ddp_gui.plan import Plan
from ddp_gui.runs import RunStore, status_values
from trainers.contract import events

Result = TypeVar("Result")


class Api:
    """The endpoints over one runs directory; results are JSON values."""

    def __init__(self, store: RunStore) -> None:
        self._runs_dir = store.runs_dir
        self._catalogue = store.catalogue
        self._store = store

    def plan(self, config: dict[str, Any]) -> Plan:
        """Check a configuration against what there is now.

        Raises:
            ConfigError: naming the field, the value and what is allowed.
        """
        return plan.make(config, self._catalogue.get(), machine.look())

    def catalog(self) -> dict[str, Any]:
        """Say what can be picked: models, data sets, strategies, broken plugins."""
        return dict(_in_plain_words(lambda: self._catalogue.get().raw))

    def start_run(self, config: dict[str, Any]) -> dict[str, Any]:
        """Start a run; missing fields take their defaults."""
        run = _in_plain_words(lambda: launcher.start(self._runs_dir, self.plan(config)))
        return {"run_id": run.run_id}

    def stop_run(self, run_id: str, save: bool = True) -> dict[str, Any]:
        """Ask a run to save (unless told not to) and end."""
        message = "Saving a checkpoint, then stopping." if save else "Stopping without saving."
        return self._command(run_id, "stop", message, save=save)

    def checkpoint_run(self, run_id: str) -> dict[str, Any]:
        """Ask a run to save a checkpoint and go on."""
        return self._command(run_id, "checkpoint", "Saving a checkpoint; training goes on.")

    def pause_run(self, run_id: str) -> dict[str, Any]:
        """Ask a run to wait at the next step."""
        return self._command(run_id, "pause", "Pausing at the next step all ranks agree on.")

    def resume_run(self, run_id: str, checkpoint_step: int | None = None) -> dict[str, Any]:
        """Let a paused run go on, or start an ended one again from a checkpoint (the newest by default)."""

        def resume() -> dict[str, Any]:
            run = self._store.open(run_id)
            state = run.read_status().state
            if state == "paused":
                launcher.resume_paused(run)
                return self._answer(run_id, "Going on.")
            if state in events.LIVE_STATES:
                raise ValueError(f"run {run_id} is {state}: only a paused or an ended run can be resumed")
            checked = self.plan(run.read_config().to_json())
            checkpoint = launcher.restart(run, _whole_step(checkpoint_step), checked.num_steps)
            self._store.view(run_id).refresh_status()
            return self._answer(run_id, f"Going on from step {checkpoint.step}.")

        return _in_plain_words(resume)

    def list_runs(self) -> list[dict[str, Any]]:
        """List all runs, newest first."""
        return _in_plain_words(lambda: self._store.rows())

    def run_status(self, run_id: str) -> dict[str, Any]:
        """Return status.json's content with the newest step and metrics."""

        def look() -> dict[str, Any]:
            view = self._store.view(run_id)
            view.catch_up()
            view.refresh_status()
            return status_values(view)

        return _in_plain_words(look)

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        # Not queued: a click must not wait behind another person's, and each takes milliseconds.
        for endpoint in (
            self.catalog,
            self.start_run,
            self.stop_run,
            self.checkpoint_run,
            self.pause_run,
            self.resume_run,
            self.list_runs,
            self.run_status,
        ):
            gr.api(endpoint, api_name=endpoint.__name__, queue=False)

    def _command(self, run_id: str, name: Any, message: str, **arguments: Any) -> dict[str, Any]:
        def send() -> dict[str, Any]:
            command_id = launcher.send(self._store.open(run_id), name, **arguments)
            return self._answer(run_id, message) | {"command_id": command_id}

        return _in_plain_words(send)

    def _answer(self, run_id: str, message: str) -> dict[str, Any]:
        state = self._store.open(run_id).read_status().state
        return {"run_id": run_id, "state": state, "message": message}


def _in_plain_words(action: Callable[[], Result]) -> Result:
    """Turn what a user can cause into an error that the page shows as it is."""
    try:
        return action()
    except (ValueError, OSError, LaunchError, CatalogueError) as error:
        raise gr.Error(str(error), print_exception=False) from error


def _whole_step(step: Any) -> int | None:
    if step is None or step == "":
        return None
    if isinstance(step, bool) or not isinstance(step, int | float | str) or not str(step).isdecimal():
        raise ValueError(f"checkpoint_step is {step!r}, but allowed is: the step of a checkpoint, or null")
    return int(step)
