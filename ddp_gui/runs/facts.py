"""What a run's configuration comes to in the list: labels, and how long the run will be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddp_gui.plan import data_snapshot
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.own_data import OwnData
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory

Facts = dict[str, Any]


def known_to(run: RunDirectory, config: Config, catalogue: Catalogue, own_data: OwnData) -> Catalogue:
    """Return the catalogue with a run's data as it was at its start, or as it was seen here."""
    if config.dataset in catalogue.own_data:
        look = own_data.remembered(config)
        if look is not None and look.dataset is not None:
            catalogue = catalogue.with_dataset(look.dataset, look.counts)
    return data_snapshot.with_noted_data(run, catalogue)


def facts_of(config: Config, catalogue: Catalogue) -> Facts:
    """Return what the list says of a configuration."""
    model = catalogue.models.get(config.model)
    strategy = catalogue.strategies.get(config.strategy)
    return {
        "config_name": config.name,
        "model": config.model,
        "model_label": model.label if model else config.model,
        "dataset": config.dataset,
        "dataset_label": dataset_label(config, catalogue),
        "strategy": config.strategy,
        "strategy_label": strategy.label if strategy else config.strategy,
        "nproc_per_node": config.nproc_per_node,
        "mistake": mistake_of(config, catalogue),
        "expected_steps": total_steps(config, catalogue),
    }


def mistake_of(config: Config, catalogue: Catalogue) -> dict[str, str] | None:
    """Return name, label and description of the mistake that is built into a run; None: there is none."""
    if not config.is_broken_on_purpose:
        return None
    known = catalogue.mistakes.get(config.mistake)
    return {
        "name": config.mistake,
        "label": known.label if known else config.mistake,
        "description": known.description if known else "A mistake that is not installed here.",
    }


def dataset_label(config: Config, catalogue: Catalogue) -> str:
    """Return what a run's data is called: a person's own by its file or folder, without the way to it."""
    if config.data_path and config.dataset in catalogue.own_data:
        return Path(config.data_path).name
    dataset = catalogue.datasets.get(config.dataset)
    return dataset.label if dataset else config.dataset


def total_steps(config: Config, catalogue: Catalogue) -> int | None:
    """Return the steps to be expected; None where the data is not known here and no limit is set."""
    dataset = catalogue.datasets.get(config.dataset)
    strategy = catalogue.strategies.get(config.strategy)
    if dataset is None or strategy is None:
        return config.max_steps
    num_replicas = config.num_replicas(strategy.ranks_per_replica)
    return config.num_steps(dataset.num_train, num_replicas)
