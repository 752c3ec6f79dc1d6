"""Generate scripts of configurations for tests, from the registered data sets and strategies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_gui.launch.as_code import script
from ddp_gui.launch.as_code.script import GeneratedScript
from trainers import registry
from trainers.contract import config as config_module
from trainers.contract.catalogue import CatalogueDataset, CatalogueStrategy
from trainers.contract.config import Config
from trainers.data.dataset import DataOptions
from trainers.plugins import catalog, inspect_data


def dataset_of(name: str) -> CatalogueDataset:
    """Return the page's description of a data set of the catalogue."""
    registry.discover_all()
    spec = registry.datasets()[name].create(DataOptions()).spec()
    return replace(catalog.describe_dataset(name, spec), num_places=catalog._num_places(name, spec))


def own_dataset(path: Path, **options: Any) -> CatalogueDataset:
    """Inspect and prepare the user's own data; return the page's description of it."""
    registry.discover_all()
    answer = inspect_data.inspect(DataOptions(path=str(path), **options), prepare=True)
    assert answer["ok"], answer["problems"]
    about = {name: value for name, value in answer["dataset"].items() if name not in ("models", "memory")}
    return CatalogueDataset(**about)


def strategy_of(name: str) -> CatalogueStrategy:
    """Return the page's description of a strategy."""
    registry.discover_all()
    return catalog.describe_strategy(registry.strategies()[name])


def config_of(**values: Any) -> Config:
    """Return a configuration of two CPU ranks, changed by `values`."""
    return config_module.parse({"device": "cpu", "nproc_per_node": 2} | values)


def script_of(
    config: Config, dataset: CatalogueDataset | None = None, *, num_threads: int | None = None
) -> GeneratedScript:
    """Return the script of a configuration. `dataset` describes the user's own data, if it is used."""
    dataset = dataset or dataset_of(config.dataset)
    return script.write(config, dataset, strategy_of(config.strategy), num_threads=num_threads)
