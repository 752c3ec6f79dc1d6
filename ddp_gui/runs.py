"""Finds runs and follows their events by byte offset: a row for the list, columns for the charts."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddp_gui import notes
from ddp_gui.catalogue import Catalogue, CatalogueSource
from ddp_gui.evaluations import Evaluations
from ddp_gui.own_data import OwnData
from ddp_gui.run_view import RunView
from ddp_gui.series import Series
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory

FORGET_AFTER_S = 60.0
STATUS_EVERY_S = 0.5
MAX_CHECKPOINTS_SHOWN = 50
_SCAN_BYTES = 4 * 1024 * 1024
_EVAL_LINE = re.compile(rb'^.*"kind":"eval".*$', re.MULTILINE)


@dataclass
class _Digest:
    """What the list shows of a run, kept up to date without holding its events."""

    offset: int = 0
    inode: int = 0
    began_unix_s: float | None = None
    num_steps: int | None = None
    step: int = 0
    loss: float | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    device_kind: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_of_another_file(self, path: Path) -> bool:
        """Tell whether the run of this id is not the one that was read: deleted, made anew."""
        try:
            about = path.stat()
        except FileNotFoundError:
            return self.offset > 0
        return self.offset > 0 and (about.st_ino != self.inode or about.st_size < self.offset)

    def catch_up(self, path: Path) -> None:
        """Read on from where the last look ended; only evaluations and the newest step are parsed."""
        try:
            with self.lock, path.open("rb") as file:
                self.inode = os.fstat(file.fileno()).st_ino
                while True:
                    file.seek(self.offset)
                    chunk = file.read(_SCAN_BYTES)
                    end = chunk.rfind(b"\n") + 1
                    if end == 0:
                        return
                    self._take(chunk[:end])
                    self.offset += end
        except FileNotFoundError:
            return

    def _take(self, chunk: bytes) -> None:
        if self.began_unix_s is None:
            self.began_unix_s = json.loads(chunk[: chunk.index(b"\n")])["time_unix_s"]
        for line in _EVAL_LINE.findall(chunk):
            self.evaluations.add(json.loads(line))
        plan = _last_line_with(chunk, b'"kind":"plan"')
        if plan is not None:
            self.num_steps = json.loads(plan)["num_steps"]
        newest_step = _last_line_with(chunk, b'"kind":"step"')
        if newest_step is not None:
            event = json.loads(newest_step)
            self.step, self.loss = event["step"], event["loss"]
        if self.device_kind is None:
            devices = _last_line_with(chunk, b'"kind":"devices"')
            if devices is not None:
                self.device_kind = json.loads(devices)["devices"][0]["kind"]


@dataclass
class RunStore:
    """All runs of one directory."""

    runs_dir: Path
    catalogue: CatalogueSource
    own_data: OwnData = field(default_factory=OwnData)
    _digests: dict[str, _Digest] = field(default_factory=dict)
    _views: dict[str, RunView] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, run_id: str) -> RunDirectory:
        """Return the run of this id.

        Raises:
            ValueError: when there is none.
        """
        return rundir.open_run(self.runs_dir, run_id)

    def view(self, run_id: str) -> RunView:
        """Return the run's view, made when nobody looked at it before.

        Raises:
            ValueError: when there is no such run or its configuration cannot be read.
        """
        run = self.open(run_id)
        with self._lock:
            view = self._views.get(run_id)
        if view is not None:
            return view
        config = run.read_config()
        view = RunView(run, total_steps(config, self.catalogue_for(run, config)))
        with self._lock:
            return self._views.setdefault(run_id, view)

    def catalogue_for(self, run: RunDirectory, config: Config) -> Catalogue:
        """Return the catalogue with a run's data as it was at its start, or as it was seen here."""
        catalogue = self.catalogue.get()
        if config.dataset in catalogue.own_data:
            look = self.own_data.remembered(config)
            if look is not None and look.dataset is not None:
                catalogue = catalogue.with_dataset(look.dataset, look.counts)
        return notes.with_noted_data(run, catalogue)

    def forget(self, run_id: str) -> None:
        """Make a run's view anew the next time: it was started again, perhaps with other ranks."""
        with self._lock:
            self._views.pop(run_id, None)

    def forget_unused(self) -> None:
        """Give back the memory of runs nobody has looked at for a minute."""
        oldest = time.monotonic() - FORGET_AFTER_S
        with self._lock:
            for run_id in [run_id for run_id, view in self._views.items() if view.used_at < oldest]:
                del self._views[run_id]

    def rows(self) -> list[dict[str, Any]]:
        """Return what the list shows of every run, newest first; an unreadable run says why."""
        paths = self.runs_dir.iterdir() if self.runs_dir.is_dir() else []
        found = [
            self._row(RunDirectory(path))
            for path in paths
            if rundir.RUN_ID_PATTERN.fullmatch(path.name) and (path / "config.json").is_file()
        ]
        return sorted(found, key=lambda row: (-row["created_unix_s"], row["run_id"]))

    def _digest(self, run: RunDirectory) -> _Digest:
        with self._lock:
            digest = self._digests.get(run.run_id)
            if digest is None or digest.is_of_another_file(run.events):
                digest = self._digests[run.run_id] = _Digest()
        digest.catch_up(run.events)
        return digest

    def _row(self, run: RunDirectory) -> dict[str, Any]:
        # Written once, when the run is made; a copied run has only its events to tell its age.
        created = run.config.stat().st_mtime
        row: dict[str, Any] = {"run_id": run.run_id, "name": run.run_id, "created_unix_s": created}
        try:
            config = run.read_config()
            status = run.read_status()
            digest = self._digest(run)
        except (OSError, ValueError, KeyError, TypeError) as error:
            unreadable = dict.fromkeys(("model", "dataset", "model_label", "dataset_label", "device"))
            nothing = {
                "nproc_per_node": None,
                "step": 0,
                "num_steps": None,
                "loss": None,
                "best_metric": None,
            }
            return row | unreadable | nothing | {"state": "lost", "error": f"cannot be read: {error}"}
        catalogue = self.catalogue_for(run, config)
        dataset, model = catalogue.datasets.get(config.dataset), catalogue.models.get(config.model)
        return row | {
            "created_unix_s": digest.began_unix_s or created,
            "name": config.name or run.run_id,
            "state": status.state,
            "error": status.error,
            "model": config.model,
            "model_label": model.label if model else config.model,
            "dataset": config.dataset,
            "dataset_label": dataset.label if dataset else config.dataset,
            "nproc_per_node": config.nproc_per_node,
            "device": digest.device_kind,
            "step": digest.step,
            "num_steps": digest.num_steps or total_steps(config, catalogue),
            "loss": digest.loss,
            "best_metric": digest.evaluations.best,
        }


def total_steps(config: Config, catalogue: Catalogue) -> int | None:
    """Return the steps to be expected; None where the data is not known here and no limit is set."""
    dataset = catalogue.datasets.get(config.dataset)
    strategy = catalogue.strategies.get(config.strategy)
    if dataset is None or strategy is None:
        return config.max_steps
    num_replicas = config.num_replicas(strategy.ranks_per_replica)
    return config.num_steps(dataset.num_train, num_replicas)


def status_values(view: RunView) -> dict[str, Any]:
    """Return status.json's content with the newest step and metrics, for `/run_status`."""
    with view.lock:
        return _status_values(view, view.series)


def _status_values(view: RunView, series: Series) -> dict[str, Any]:
    evaluation = series.evaluations.last
    return {
        "run_id": view.run.run_id,
        **asdict(view.status()),
        "step": series.last_step.get("step", 0),
        "num_steps": view.total_steps,
        "epoch": series.last_step.get("epoch"),
        "loss": _finite(series.last_step.get("loss")),
        "samples_per_s": series.last_step.get("samples_per_s"),
        "validation_loss": evaluation.get("loss"),
        "metrics": evaluation.get("metrics", {}),
        "best_metric": series.evaluations.best,
        "checkpoints": view.checkpoints(),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _last_line_with(chunk: bytes, mark: bytes) -> bytes | None:
    found = chunk.rfind(mark)
    if found < 0:
        return None
    start = chunk.rfind(b"\n", 0, found) + 1
    return chunk[start : chunk.index(b"\n", found)]
