"""What can be picked, asked of a short-lived training process and cached by the files' mtimes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddp_gui.paths import REPOSITORY
from trainers.contract.config import RanksPerReplica
from trainers.contract.rundir import write_json_atomically

ASK_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """One preset of a model, with its parameter count by data set."""

    name: str
    description: str
    num_parameters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model; `missing_packages` is what it still needs on this machine."""

    name: str
    label: str
    description: str
    tasks: tuple[str, ...]
    sizes: tuple[Size, ...]
    strategies: tuple[str, ...]
    needs_path: bool = False
    may_have_path: bool = False
    missing_packages: tuple[str, ...] = ()

    def size(self, name: str) -> Size | None:
        """Return the size of this name; of no name the usual one."""
        if not name:
            return self.sizes[0]
        return next((size for size in self.sizes if size.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    name: str
    label: str
    description: str
    ranks_per_replica: RanksPerReplica
    memory_shares: Mapping[str, RanksPerReplica] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    label: str
    description: str
    source: str
    task: str
    num_train: int
    num_validation: int
    num_classes: int
    sample_unit: str
    num_places: int | None = None


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The models, data sets and strategies by name; `raw` is what the training process printed."""

    models: Mapping[str, Model]
    datasets: Mapping[str, Dataset]
    strategies: Mapping[str, Strategy]
    unavailable: tuple[Mapping[str, str], ...]
    own_data: Mapping[str, str]
    errors: tuple[Mapping[str, str], ...]
    raw: Mapping[str, Any]

    def models_for(self, dataset: str) -> list[Model]:
        """Return the models that can learn from a data set, those that can be used now first."""
        fitting = [
            model
            for model in self.models.values()
            if dataset not in self.datasets or self.datasets[dataset].task in model.tasks
        ]
        return sorted(fitting, key=lambda model: model.may_have_path)

    def with_dataset(self, dataset: Dataset, counts: Mapping[str, Mapping[str, int]]) -> Catalogue:
        """Return a catalogue that also has a person's own data, with the parameters of each model's sizes."""
        models = {
            name: replace(
                model,
                sizes=tuple(
                    replace(
                        size,
                        num_parameters={
                            **size.num_parameters,
                            **_count_of(dataset.name, counts.get(name, {}).get(size.name)),
                        },
                    )
                    for size in model.sizes
                ),
            )
            for name, model in self.models.items()
        }
        return replace(self, models=models, datasets={**self.datasets, dataset.name: dataset})


def _count_of(dataset: str, count: int | None) -> dict[str, int]:
    return {} if count is None else {dataset: count}


class CatalogueError(RuntimeError):
    """The training process could not say what there is."""


class CatalogueSource:
    """Gives the catalogue; asks the training process again only when a file of it has changed."""

    def __init__(self, cache_file: Path) -> None:
        self._cache_file = cache_file
        self._lock = threading.Lock()
        self._key = ""
        self._catalogue: Catalogue | None = None

    def get(self) -> Catalogue:
        """Return the catalogue as the files are now.

        Raises:
            CatalogueError: when the training process fails; says its last words.
        """
        with self._lock:
            if self._catalogue is not None and self._key == self._current_key(self._catalogue.raw):
                return self._catalogue
            try:
                raw = self._cached() or self._ask()
            except CatalogueError as error:
                if self._catalogue is None:
                    raise
                # Somebody is editing: what there was goes on, and the page says what is wrong.
                raw = {**self._catalogue.raw, "errors": [_as_broken(error)]}
            self._catalogue = _parse(raw)
            self._key = self._current_key(raw)
            return self._catalogue

    def _current_key(self, raw: Mapping[str, Any]) -> str:
        return _fingerprint([Path(path) for path in raw.get("watched_paths", [])])

    def _cached(self) -> Mapping[str, Any] | None:
        try:
            cached: dict[str, Any] = json.loads(self._cache_file.read_text(encoding="utf-8"))
            fits = cached["key"] == self._current_key(cached["catalogue"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cached["catalogue"] if fits else None

    def _ask(self) -> Mapping[str, Any]:
        try:
            answer = subprocess.run(
                [sys.executable, "-m", "trainers.catalog"],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ASK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CatalogueError("the catalogue did not answer within two minutes") from error
        if answer.returncode != 0:
            words = answer.stderr.decode("utf-8", errors="replace").strip()[-2000:]
            raise CatalogueError(f"the catalogue could not be read:\n{words}")
        raw: dict[str, Any] = json.loads(answer.stdout)
        try:
            self._cache_file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomically(self._cache_file, {"key": self._current_key(raw), "catalogue": raw})
        except OSError as error:
            print(f"The catalogue is not cached ({error}); the next start takes some seconds more.")
        return raw


def _as_broken(error: CatalogueError) -> dict[str, str]:
    return {"module": "trainers", "message": str(error), "traceback": ""}


def default_cache_file() -> Path:
    """Return where this checkout's catalogue is cached: inside it, or in the temporary folder."""
    inside = REPOSITORY / ".cache"
    if os.access(inside if inside.is_dir() else REPOSITORY, os.W_OK):
        return inside / "catalogue.json"
    mark = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"ddp-catalogue-{os.getuid()}-{mark}.json"


def _fingerprint(watched: Iterable[Path]) -> str:
    """Sum up path, time and size of every file the catalogue depends on."""
    files = [*(REPOSITORY / "trainers").rglob("*.py"), *(REPOSITORY / "assets" / "data").rglob("*"), *watched]
    digest = hashlib.sha256(sys.executable.encode())
    for path in sorted(set(files)):
        try:
            about = path.stat()
            digest.update(f"{path}:{about.st_mtime_ns}:{about.st_size}\n".encode())
        except OSError:
            digest.update(f"{path}:absent\n".encode())
    return digest.hexdigest()


def _parse_model(entry: Mapping[str, Any]) -> Model:
    return Model(
        **{
            **entry,
            "tasks": tuple(entry["tasks"]),
            "strategies": tuple(entry["strategies"]),
            "missing_packages": tuple(entry["missing_packages"]),
            "sizes": tuple(Size(**size) for size in entry["sizes"]),
        }
    )


def _parse(raw: Mapping[str, Any]) -> Catalogue:
    models = [_parse_model(entry) for entry in raw["models"]]
    datasets = [Dataset(**entry) for entry in raw["datasets"]]
    return Catalogue(
        models={model.name: model for model in models},
        datasets={dataset.name: dataset for dataset in datasets},
        strategies={entry["name"]: Strategy(**entry) for entry in raw["strategies"]},
        unavailable=tuple(raw["unavailable"]),
        own_data={entry["name"]: entry["label"] for entry in raw["own_data"]},
        errors=tuple(raw["errors"]),
        raw=raw,
    )
