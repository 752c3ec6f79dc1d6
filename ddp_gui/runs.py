"""Finds runs and follows their events by byte offset: a row for the list, columns for the charts."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddp_gui.catalogue import Catalogue
from ddp_gui.series import Evaluations, Series
from trainers.contract import events, rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, Status

FORGET_AFTER_S = 60.0
STATUS_EVERY_S = 0.5
_SCAN_BYTES = 4 * 1024 * 1024
_EVAL_LINE = re.compile(rb'^.*"kind":"eval".*$', re.MULTILINE)


def num_steps(config: Config, num_train: int | None) -> int | None:
    """Return the steps of the whole run, or None when the data set is not known here."""
    if num_train is None:
        return config.max_steps
    per_epoch = -(-num_train // (config.batch_size * config.nproc_per_node))
    total = per_epoch * config.num_epochs
    return total if config.max_steps is None else min(total, config.max_steps)


@dataclass
class _Digest:
    """What the list shows of a run, kept up to date without holding its events."""

    offset: int = 0
    began_unix_s: float | None = None
    step: int = 0
    loss: float | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    device_kind: str | None = None

    def catch_up(self, path: Path) -> None:
        """Read on from where the last look ended; only evaluations and the newest step are parsed."""
        while True:
            try:
                with path.open("rb") as file:
                    file.seek(self.offset)
                    chunk = file.read(_SCAN_BYTES)
            except FileNotFoundError:
                return
            end = chunk.rfind(b"\n") + 1
            if end == 0:
                return
            self._take(chunk[:end])
            self.offset += end

    def _take(self, chunk: bytes) -> None:
        if self.began_unix_s is None:
            self.began_unix_s = json.loads(chunk[: chunk.index(b"\n")])["time_unix_s"]
        for line in _EVAL_LINE.findall(chunk):
            self.evaluations.add(json.loads(line))
        newest_step = _last_line_with(chunk, b'"kind":"step"')
        if newest_step is not None:
            event = json.loads(newest_step)
            self.step, self.loss = event["step"], event["loss"]
        if self.device_kind is None:
            devices = _last_line_with(chunk, b'"kind":"devices"')
            if devices is not None:
                self.device_kind = json.loads(devices)["devices"][0]["kind"]


class RunView:
    """One run while somebody looks at it: its columns, its status, its place in the file."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.series = Series()
        self.config = run.read_config()
        self.used_at = time.monotonic()
        self._offset = 0
        self._inode = 0
        self._status: Status | None = None
        self._status_at = 0.0
        self._checkpoints: list[dict[str, Any]] = []
        self._checkpoints_mtime_ns = -1
        self._lock = threading.Lock()

    def catch_up(self) -> bool:
        """Take in the events written since the last call; tell whether there were any."""
        self.used_at = time.monotonic()
        with self._lock:
            try:
                about = self.run.events.stat()
            except FileNotFoundError:
                return False
            if about.st_ino != self._inode or about.st_size < self._offset:
                # Another file (a directory copied over): from its beginning.
                self.series, self._offset, self._inode = Series(), 0, about.st_ino
            found = False
            while about.st_size > self._offset:
                batch, self._offset = events.read(self.run.events, self._offset)
                if not batch:
                    break
                self.series.feed(batch)
                found = True
            return found

    def status(self) -> Status:
        """Return the run's true state, looked up at most twice a second."""
        now = time.monotonic()
        if self._status is None or now - self._status_at > STATUS_EVERY_S:
            self._status, self._status_at = self.run.read_status(), now
        return self._status

    def refresh_status(self) -> None:
        """Look the state up again at the next call of `status`."""
        self._status_at = 0.0

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the whole checkpoints, newest first."""
        try:
            mtime_ns = self.run.checkpoints.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if mtime_ns != self._checkpoints_mtime_ns:
            self._checkpoints_mtime_ns = mtime_ns
            newest_first = sorted(self.run.list_checkpoints(), key=lambda item: -item.saved_unix_s)
            self._checkpoints = [
                {"step": item.step, "size_bytes": item.size_bytes, "saved_unix_s": item.saved_unix_s}
                for item in newest_first
            ]
        return self._checkpoints


@dataclass
class RunStore:
    """All runs of one directory."""

    runs_dir: Path
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
            if run_id not in self._views:
                self._views[run_id] = RunView(run)
            return self._views[run_id]

    def forget_unused(self) -> None:
        """Give back the memory of runs nobody has looked at for a minute."""
        oldest = time.monotonic() - FORGET_AFTER_S
        with self._lock:
            for run_id in [run_id for run_id, view in self._views.items() if view.used_at < oldest]:
                del self._views[run_id]

    def rows(self, catalogue: Catalogue) -> list[dict[str, Any]]:
        """Return what the list shows of every run, newest first; an unreadable run says why."""
        paths = self.runs_dir.iterdir() if self.runs_dir.is_dir() else []
        found = [
            self._row(RunDirectory(path), catalogue)
            for path in paths
            if rundir.RUN_ID_PATTERN.fullmatch(path.name) and (path / "config.json").is_file()
        ]
        return sorted(found, key=lambda row: (-row["created_unix_s"], row["run_id"]))

    def _row(self, run: RunDirectory, catalogue: Catalogue) -> dict[str, Any]:
        # Written once, when the run is made; a copied run has only its events to tell its age.
        created = run.config.stat().st_mtime
        row: dict[str, Any] = {"run_id": run.run_id, "name": run.run_id, "created_unix_s": created}
        try:
            config = run.read_config()
            status = run.read_status()
            with self._lock:
                digest = self._digests.setdefault(run.run_id, _Digest())
                digest.catch_up(run.events)
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
        dataset = catalogue.datasets.get(config.dataset)
        model = catalogue.models.get(config.model)
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
            "num_steps": num_steps(config, dataset.num_train if dataset else None),
            "loss": digest.loss,
            "best_metric": digest.evaluations.best,
        }


def status_values(view: RunView, total_steps: int | None) -> dict[str, Any]:
    """Return status.json's content with the newest step and metrics, for `/run_status`."""
    series = view.series
    evaluation = series.evaluations.last
    return {
        "run_id": view.run.run_id,
        **asdict(view.status()),
        "step": series.last_step.get("step", 0),
        "num_steps": total_steps,
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
