"""The store of runs: access with permission checks, and views of runs that users have open."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile
from ddp_gui.background import trainer_process
from ddp_gui.events.analysis import pace as pace_module
from ddp_gui.events.run_view import RunView
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource
from ddp_gui.plan.memory import NeedsSource, Prediction, predict
from ddp_gui.plan.own_data import OwnDataInspector
from ddp_gui.runs import listing
from ddp_gui.runs.listing import Changes, Listing, total_steps
from trainers.contract import events, rundir, start_from
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.machine.os_errors import explain

FORGET_AFTER_S = 60.0


class NoSuchRunError(ValueError):
    """The run does not exist, the current user cannot see it, or its configuration cannot be read."""

    http_status = 404


@dataclass
class RunStore:
    """All runs of a runs directory."""

    runs_dir: Path
    catalogue: CatalogueSource
    own_data: OwnDataInspector = field(default_factory=OwnDataInspector)
    needs: NeedsSource = field(
        default_factory=lambda: NeedsSource(trainer_process.default_cache_file("memory"))
    )
    # Runs of polls, which every user can view regardless of their owner.
    shown_to_all: set[str] = field(default_factory=set)
    _views: dict[str, RunView] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.class_settings = ClassSettingsFile(self.runs_dir)
        self._listed_settings = self.class_settings.read()
        self.listing = Listing(
            self.runs_dir,
            lambda: self.catalogue.get(),
            lambda run, config, catalogue: listing.catalogue_for_run(run, config, catalogue, self.own_data),
        )

    def open(self, run_id: str, *, to_change: bool = False) -> RunDirectory:
        """Return a run.

        Args:
            to_change: True if the caller will stop, resume, rename or delete the run.
        Raises:
            NoSuchRunError: if it does not exist or the current user cannot see it.
            NotAllowedError: if the current user cannot change it.
        """
        try:
            run = rundir.open_run(self.runs_dir, run_id)
        except ValueError as error:
            raise NoSuchRunError(str(error)) from error
        if rights.current_user().is_teacher:
            return run
        owner = rights.owner_of(run)
        if not self.may_see(owner) and run_id not in self.shown_to_all:
            raise NoSuchRunError(str(rundir.no_such_run(run_id)))
        if to_change:
            rights.require_change(run_id, owner)
        return run

    def has_source(self, run: RunDirectory, source: str) -> bool:
        """Return False if the run that another one started from was deleted, replaced or is hidden."""
        try:
            return start_from.is_still_there(run, self.open(source))
        except (OSError, ValueError):
            return False

    def is_shown(self, run_id: str) -> bool:
        """Return True if the run exists and the current user can see it."""
        try:
            self.open(run_id)
        except ValueError:
            return False
        return True

    def may_see(self, owner: str | None) -> bool:
        """Return True if the current user can see runs of this owner."""
        return rights.may_change(owner) or self.class_settings.read().everyone_sees

    def view(self, run_id: str) -> RunView:
        """Return a run's view, which is created on first use.

        Raises:
            NoSuchRunError: if the run does not exist or its configuration cannot be read.
        """
        run = self.open(run_id)
        with self._lock:
            view = self._views.get(run_id)
        if view is not None:
            return view
        try:
            config = run.read_config()
            view = RunView(run, total_steps(config, self.catalogue_for(run, config)))
        except (OSError, ValueError) as error:
            raise NoSuchRunError(explain(error)) from error
        with self._lock:
            return self._views.setdefault(run_id, view)

    def catalogue_for(self, run: RunDirectory, config: Config) -> Catalogue:
        """Return the catalogue with the run's data set as recorded at its start, or as inspected."""
        return listing.catalogue_for_run(run, config, self.catalogue.get(), self.own_data)

    def predicted_memory(
        self, config: Config, catalogue: Catalogue, *, is_on_gpu: bool = False
    ) -> Prediction | None:
        """Return the predicted memory of a rank; None if it is unknown."""
        model, strategy = catalogue.models.get(config.model), catalogue.strategies.get(config.strategy)
        size = model.size(config.model_size) if model else None
        if model is None or strategy is None or size is None:
            return None
        inspection = self.own_data.find_cached(config) if config.dataset in catalogue.own_data else None
        needs = (
            inspection.memory.get(model.name, {}).get(size.name)
            if inspection is not None
            else self.needs.needs_of(model.name, size.name, config.dataset)
        )
        if config.sequence_length is not None:
            needs = None  # the known needs apply only to the default sequence length
        num_parameters = size.num_parameters.get(config.dataset)
        return predict(config, strategy, num_parameters, needs, is_on_gpu=is_on_gpu)

    def forget(self, run_id: str) -> None:
        """Drop a run's view because the run was restarted, possibly with a different number of ranks."""
        with self._lock:
            self._views.pop(run_id, None)

    def read_again(self, run_ids: Iterable[str]) -> None:
        """Make changes visible at the next request: discard the runs' views, and mark their rows."""
        changed = list(run_ids)
        for run_id in changed:
            self.forget(run_id)
        self.listing.read_again(changed)

    def forget_unused(self) -> None:
        """Free the memory of runs without a viewer in the last minute."""
        oldest = time.monotonic() - FORGET_AFTER_S
        with self._lock:
            for run_id in [run_id for run_id, view in self._views.items() if view.used_at < oldest]:
                del self._views[run_id]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows visible to the current user, most recent first; an unreadable run has an error."""
        return [row for row in self.listing.rows() if self.may_see(row["owner"])]

    def row(self, run_id: str) -> dict[str, Any]:
        """Return the current row of a run.

        Raises:
            ValueError: if it does not exist or the current user cannot see it.
        """
        self.open(run_id)
        return self.listing.row(run_id)

    def changes(self, since: int = -1) -> Changes:
        """Return the changes since a version, limited to runs that the current user can see."""
        settings = self.class_settings.read()
        if settings != self._listed_settings:
            self._listed_settings = settings
            self.listing.invalidate()
        changes = self.listing.changes(since)
        rows = [row for row in changes.rows if self.may_see(row["owner"])]
        gone = {run_id: owner for run_id, owner in changes.gone.items() if self.may_see(owner)}
        return replace(changes, rows=rows, gone=gone)


def status_values(view: RunView) -> dict[str, Any]:
    """Return the content of status.json with the latest step and metrics, for `/run_status`."""
    with view.lock:
        series = view.series
        evaluation = series.evaluations.last
        status = view.status()
        pace = pace_module.pace_of_run(series, is_over=status.state not in events.LIVE_STATES)
        return {
            "run_id": view.run.run_id,
            **asdict(status),
            "detail": liveness.detail(view.run, status),
            "step": series.last_step.get("step", 0),
            "num_steps": view.total_steps,
            "epoch": series.last_step.get("epoch"),
            "loss": _finite(series.last_step.get("loss")),
            "samples_per_s": None if pace is None else pace.samples_per_s,
            "validation_loss": evaluation.get("loss"),
            "metrics": evaluation.get("metrics", {}),
            "best_metric": series.evaluations.best,
            "checkpoints": view.checkpoints(),
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
