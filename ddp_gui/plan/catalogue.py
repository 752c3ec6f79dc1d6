"""The catalogue, read from a short-lived training process and cached by the files' mtimes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from trainers.contract import config as config_module
from trainers.contract.config import RanksPerReplica
from trainers.contract.config.options import Check, Option

CHECK_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of a model, with its number of parameters by data set."""

    name: str
    description: str
    num_parameters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model; `missing_packages` are not installed on this machine."""

    name: str
    label: str
    description: str
    tasks: tuple[str, ...]
    sizes: tuple[Size, ...]
    strategies: tuple[str, ...]
    family: str = "dense"
    needs_path: bool = False
    may_have_path: bool = False
    missing_packages: tuple[str, ...] = ()

    def size(self, name: str) -> Size | None:
        """Return the size of this name; the default size if the name is empty; None if unknown."""
        if not name:
            return self.sizes[0]
        return next((size for size in self.sizes if size.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A strategy; `trainers.parallel.strategy.Strategy` documents the fields."""

    name: str
    label: str
    description: str
    sharing: str
    ranks_per_replica: RanksPerReplica
    memory_shares: Mapping[str, str] = field(default_factory=dict)
    gradient_copies: str = "1"
    holds_replica: bool = False
    options: tuple[str, ...] = ()
    own_options: tuple[Option, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake that can be built in; `trainers.registry.MistakeEntry` documents the fields."""

    name: str
    label: str
    description: str
    hangs: bool
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task; `trainers.report.metrics.Task` documents the fields."""

    name: str
    loss_words: str
    first_metric: str


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set; `prepared` is the name of own data's prepared folder in the cache."""

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
    prepared: str = ""

    def num_samples(self, sequence_length: int | None) -> int:
        """Return the number of training samples; for a text it depends on the sequence length."""
        if self.num_places is None or sequence_length is None:
            return self.num_train
        return self.num_places // sequence_length


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The complete catalogue, by name; `raw` is the training process's output."""

    models: Mapping[str, Model]
    datasets: Mapping[str, Dataset]
    strategies: Mapping[str, Strategy]
    tasks: Mapping[str, Task]
    mistakes: Mapping[str, Mistake]
    unavailable: tuple[Mapping[str, str | None], ...]
    own_data: Mapping[str, str]
    errors: tuple[Mapping[str, str], ...]
    raw: Mapping[str, Any]

    def models_for(self, dataset: str) -> list[Model]:
        """Return the models that can learn from a data set, the recommended one first."""
        known = self.datasets.get(dataset)
        return _as_offered(self.models.values()) if known is None else self.models_for_task(known.task)

    def models_for_task(self, task: str) -> list[Model]:
        """Return the models that can learn a task, the recommended one first."""
        return _as_offered(model for model in self.models.values() if task in model.tasks)

    def own_options(self) -> dict[str, Option]:
        """Return the strategies' own options, by name."""
        return {
            option.name: option for strategy in self.strategies.values() for option in strategy.own_options
        }

    def only_with(self, field: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the condition on another field under which a field applies; None: always."""
        setting = config_module.settings().get(field)
        if setting is not None and not setting.by_strategy:
            return setting.only_with
        users = [
            strategy.name
            for strategy in self.strategies.values()
            if field in strategy.options or field in [option.name for option in strategy.own_options]
        ]
        return "strategy", tuple(users)

    def means_something(self, field: str, values: Mapping[str, Any]) -> bool:
        """Return True if a field applies with these values of the other fields."""
        only_with = self.only_with(field)
        return only_with is None or values[only_with[0]] in only_with[1]

    def with_dataset(self, dataset: Dataset, counts: Mapping[str, Mapping[str, int]]) -> Catalogue:
        """Return a catalogue with the user's own data, and the parameters of each model size for it."""
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


def _as_offered(models: Iterable[Model]) -> list[Model]:
    """Sort models: those that need a path or a package come last, specialised ones first.

    "Linear" learns every task on images and tables: it is a baseline, not the first choice.
    """
    return sorted(models, key=lambda model: (model.may_have_path, len(model.tasks)))


def _count_of(dataset: str, count: int | None) -> dict[str, int]:
    return {} if count is None else {dataset: count}


class CatalogueError(RuntimeError):
    """The training process could not print the catalogue."""


class CatalogueSource:
    """Provides the catalogue; runs the training process again only if one of its files has changed."""

    def __init__(self, cache_file: Path | None) -> None:
        self._cache_file = cache_file
        self._lock = threading.Lock()
        self._key = ""
        self._checked_at = -math.inf
        self._catalogue: Catalogue | None = None

    def get(self, *, now: bool = False) -> Catalogue:
        """Return the catalogue; files are checked at most once a second, or immediately with `now`.

        Raises:
            CatalogueError: if the training process fails; the message is the end of its output.
        """
        with self._lock:
            was_checked_s_ago = time.monotonic() - self._checked_at
            if self._catalogue is not None and not now and was_checked_s_ago < CHECK_EVERY_S:
                return self._catalogue
            self._checked_at = time.monotonic()
            if self._catalogue is not None and self._key == trainer_process.current_key(self._catalogue.raw):
                return self._catalogue
            try:
                raw = self._load()
            except AskError as error:
                if self._catalogue is None:
                    raise CatalogueError(str(error)) from error
                # A user may be editing a file: the old catalogue stays, and the page reports the error.
                raw = {**self._catalogue.raw, "errors": [_as_broken(error)]}
            self._catalogue = _parse(raw)
            self._key = trainer_process.current_key(raw)
            return self._catalogue

    def _load(self) -> Mapping[str, Any]:
        known = trainer_process.remembered(self._cache_file)
        if known is None:
            known = trainer_process.ask("trainers.plugins.catalog")
            trainer_process.remember(self._cache_file, known)
        return known


def _as_broken(error: AskError) -> dict[str, str]:
    return {"module": "trainers", "message": str(error), "traceback": ""}


def default_cache_file() -> Path | None:
    """Return the cache file of this checkout's catalogue."""
    return trainer_process.default_cache_file("catalogue")


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


def _parse_strategy(entry: Mapping[str, Any]) -> Strategy:
    return Strategy(
        **{
            **entry,
            "options": tuple(entry["options"]),
            "own_options": tuple(Option.from_json(option) for option in entry["own_options"]),
            "checks": tuple(Check(**check) for check in entry["checks"]),
        }
    )


def _parse_mistake(entry: Mapping[str, Any]) -> Mistake:
    return Mistake(**{**entry, "checks": tuple(Check(**check) for check in entry["checks"])})


def _parse(raw: Mapping[str, Any]) -> Catalogue:
    models = [_parse_model(entry) for entry in raw["models"]]
    datasets = [Dataset(**entry) for entry in raw["datasets"]]
    return Catalogue(
        models={model.name: model for model in models},
        datasets={dataset.name: dataset for dataset in datasets},
        strategies={entry["name"]: _parse_strategy(entry) for entry in raw["strategies"]},
        tasks={entry["name"]: Task(**entry) for entry in raw["tasks"]},
        mistakes={entry["name"]: _parse_mistake(entry) for entry in raw["mistakes"]},
        unavailable=tuple(raw["unavailable"]),
        own_data={entry["name"]: entry["label"] for entry in raw["own_data"]},
        errors=tuple(raw["errors"]),
        raw=raw,
    )
