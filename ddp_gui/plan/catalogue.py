"""The catalogue, read from a short-lived training process and cached until a plug-in file changes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from trainers.contract import config as config_module
from trainers.contract.catalogue import (
    CatalogueDataset,
    CatalogueStrategy,
    CatalogueTask,
    Mistake,
    Model,
    PrintedCatalogue,
)
from trainers.contract.config.options import Option
from trainers.files import typed

CHECK_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The complete catalogue, by name; `raw` is the training process's output."""

    models: Mapping[str, Model]
    datasets: Mapping[str, CatalogueDataset]
    strategies: Mapping[str, CatalogueStrategy]
    tasks: Mapping[str, CatalogueTask]
    mistakes: Mapping[str, Mistake]
    unavailable: tuple[Mapping[str, str | None], ...]
    own_data: Mapping[str, str]
    errors: tuple[Mapping[str, str], ...]
    raw: Mapping[str, Any]

    def models_for(self, dataset: str) -> list[Model]:
        """Return the models that can learn from a data set, the recommended one first."""
        entry = self.datasets.get(dataset)
        return _sort_for_display(self.models.values()) if entry is None else self.models_for_task(entry.task)

    def models_for_task(self, task: str) -> list[Model]:
        """Return the models that can learn a task, the recommended one first."""
        return _sort_for_display(model for model in self.models.values() if task in model.tasks)

    def own_options(self) -> dict[str, Option]:
        """Return the strategies' own options, by name."""
        return {
            option.name: option for strategy in self.strategies.values() for option in strategy.own_options
        }

    def only_with(self, field: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the condition on another field under which a field applies; None: it always applies."""
        setting = config_module.settings().get(field)
        if setting is not None and setting.by_plugin == "model":
            return "model", tuple(model.name for model in self.models.values() if field in model.options)
        if setting is not None and not setting.by_plugin:
            return setting.only_with
        strategies = [
            strategy.name
            for strategy in self.strategies.values()
            if field in strategy.options or field in [option.name for option in strategy.own_options]
        ]
        return "strategy", tuple(strategies)

    def is_applicable(self, field: str, values: Mapping[str, Any]) -> bool:
        """Return True if a field applies with these values of the other fields."""
        only_with = self.only_with(field)
        return only_with is None or values[only_with[0]] in only_with[1]

    def with_dataset(self, dataset: CatalogueDataset, counts: Mapping[str, Mapping[str, int]]) -> Catalogue:
        """Return a catalogue with the user's own data, and the parameters of each model size for it."""
        models = {
            name: replace(
                model,
                sizes=tuple(
                    replace(
                        size,
                        num_parameters={
                            **size.num_parameters,
                            **_parameter_counts(dataset.name, counts.get(name, {}).get(size.name)),
                        },
                    )
                    for size in model.sizes
                ),
            )
            for name, model in self.models.items()
        }
        return replace(self, models=models, datasets={**self.datasets, dataset.name: dataset})


def _sort_for_display(models: Iterable[Model]) -> list[Model]:
    """Sort models: those that need a path or a package come last, specialised ones first.

    "Linear" learns every task on images and tables: it is a baseline, not the first choice.
    """
    return sorted(models, key=lambda model: (model.may_have_path, len(model.tasks)))


def _parameter_counts(dataset: str, count: int | None) -> dict[str, int]:
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

    def get(self, *, check_now: bool = False) -> Catalogue:
        """Return the catalogue; files are checked at most once a second, or immediately with `check_now`.

        Raises:
            CatalogueError: if the training process fails; the message is the end of its output.
        """
        with self._lock:
            since_check_s = time.monotonic() - self._checked_at
            if self._catalogue is not None and not check_now and since_check_s < CHECK_EVERY_S:
                return self._catalogue
            self._checked_at = time.monotonic()
            if self._catalogue is not None and self._key == trainer_process.current_key(self._catalogue.raw):
                return self._catalogue
            try:
                raw = trainer_process.ask_once(self._cache_file, "trainers.plugins.catalog")
            except AskError as error:
                if self._catalogue is None:
                    raise CatalogueError(str(error)) from error
                # A user may be editing a file, so keep the old catalogue and report the error.
                raw = {**self._catalogue.raw, "errors": [_error_entry(error)]}
            self._catalogue = _parse(raw)
            self._key = trainer_process.current_key(raw)
            return self._catalogue


def _error_entry(error: AskError) -> dict[str, str]:
    return {"module": "trainers", "message": str(error), "traceback": ""}


def default_cache_file() -> Path | None:
    """Return the cache file of this checkout's catalogue."""
    return trainer_process.default_cache_file("catalogue")


def _parse(raw: Mapping[str, Any]) -> Catalogue:
    printed = typed.read(PrintedCatalogue, raw, ignores_unknown=True)
    return Catalogue(
        models={model.name: model for model in printed.models},
        datasets={dataset.name: dataset for dataset in printed.datasets},
        strategies={strategy.name: strategy for strategy in printed.strategies},
        tasks={task.name: task for task in printed.tasks},
        mistakes={mistake.name: mistake for mistake in printed.mistakes},
        unavailable=tuple(raw["unavailable"]),
        own_data={kind.name: kind.label for kind in printed.own_data},
        errors=tuple(raw["errors"]),
        raw=raw,
    )
