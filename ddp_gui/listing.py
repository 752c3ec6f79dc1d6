"""The list of runs: one row for each, read from the directories alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_gui.catalogue import Catalogue
from ddp_gui.digest import Digest
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory


class Listing:
    """The rows of all runs of one directory."""

    def __init__(self, runs_dir: Path, catalogue_for: Callable[[RunDirectory, Config], Catalogue]) -> None:
        self.runs_dir = runs_dir
        self._catalogue_for = catalogue_for
        self._digests: dict[str, Digest] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Return what the list shows of every run, newest first; an unreadable run says why."""
        paths = self.runs_dir.iterdir() if self.runs_dir.is_dir() else []
        found = [
            self._row(RunDirectory(path))
            for path in paths
            if rundir.RUN_ID_PATTERN.fullmatch(path.name) and (path / "config.json").is_file()
        ]
        return sorted(found, key=lambda row: (-row["created_unix_s"], row["run_id"]))

    def _digest(self, run: RunDirectory) -> Digest:
        with self._lock:
            digest = self._digests.get(run.run_id)
            if digest is None or digest.is_of_another_file(run.events):
                digest = self._digests[run.run_id] = Digest()
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
        catalogue = self._catalogue_for(run, config)
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
