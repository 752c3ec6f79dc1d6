"""What can be picked: plugins register by decorator and are discovered by package.

A new model, data set or strategy is one file with one decorator; nothing else is touched. A file that
fails to import is reported by name and breaks nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from trainers.data import Dataset, DataSpec
    from trainers.distributed import World


class ModelBuilder(Protocol):
    """Builds a network for a data set's shape; its weights are drawn from torch's global generator."""

    def __call__(self, spec: DataSpec) -> nn.Module: ...


class StrategyWrapper(Protocol):
    """Makes a network train in parallel; takes it on its device and returns the one to call."""

    def __call__(self, model: nn.Module, world: World) -> nn.Module: ...


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    name: str
    label: str
    description: str
    tasks: tuple[str, ...]
    build: ModelBuilder


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    name: str
    label: str
    create: Callable[[], Dataset]


@dataclass(frozen=True, kw_only=True)
class StrategyEntry:
    name: str
    label: str
    description: str
    wrap: StrategyWrapper


@dataclass(frozen=True, kw_only=True)
class BrokenPlugin:
    """A plugin file that could not be imported."""

    module: str
    message: str
    traceback: str


Entry = TypeVar("Entry")

_models: dict[str, ModelEntry] = {}
_datasets: dict[str, DatasetEntry] = {}
_strategies: dict[str, StrategyEntry] = {}


def register_model(
    name: str, *, label: str, description: str, tasks: tuple[str, ...]
) -> Callable[[ModelBuilder], ModelBuilder]:
    """Register a function that builds a network for a `DataSpec`."""

    def decorate(build: ModelBuilder) -> ModelBuilder:
        entry = ModelEntry(name=name, label=label, description=description, tasks=tasks, build=build)
        _add(_models, name, entry, "model")
        return build

    return decorate


def register_dataset(name: str, *, label: str) -> Callable[[type[Dataset]], type[Dataset]]:
    """Register a `Dataset` class."""

    def decorate(create: type[Dataset]) -> type[Dataset]:
        _add(_datasets, name, DatasetEntry(name=name, label=label, create=create), "data set")
        return create

    return decorate


def register_strategy(
    name: str, *, label: str, description: str
) -> Callable[[StrategyWrapper], StrategyWrapper]:
    """Register a function that makes a network train in parallel."""

    def decorate(wrap: StrategyWrapper) -> StrategyWrapper:
        entry = StrategyEntry(name=name, label=label, description=description, wrap=wrap)
        _add(_strategies, name, entry, "strategy")
        return wrap

    return decorate


def discover(package_name: str) -> list[BrokenPlugin]:
    """Import every file of a plugin package; return those that failed."""
    package = importlib.import_module(package_name)
    broken = []
    for info in pkgutil.iter_modules(package.__path__, prefix=f"{package_name}."):
        try:
            importlib.import_module(info.name)
        except Exception as error:  # noqa: BLE001 - a plugin is anybody's code; it is reported, not hidden
            message = f"{type(error).__name__}: {error}"
            broken.append(BrokenPlugin(module=info.name, message=message, traceback=traceback.format_exc()))
    return broken


def discover_all() -> list[BrokenPlugin]:
    """Import all models, data sets and strategies; return the files that failed."""
    packages = ("trainers.models", "trainers.datasets", "trainers.strategies")
    return [broken for package in packages for broken in discover(package)]


def models() -> Mapping[str, ModelEntry]:
    """Return the models by name."""
    return _models


def datasets() -> Mapping[str, DatasetEntry]:
    """Return the data sets by name."""
    return _datasets


def strategies() -> Mapping[str, StrategyEntry]:
    """Return the strategies by name."""
    return _strategies


def _add(table: dict[str, Entry], name: str, entry: Entry, what: str) -> None:
    if name in table:
        raise ValueError(f"there is already a {what} called {name!r}")
    table[name] = entry
