"""What Start would do with a configuration: checked against the catalogue and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_gui.catalogue import Catalogue, Dataset, Model
from ddp_gui.machine import Machine
from ddp_gui.paths import REPOSITORY
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration that can be started, and what follows from it."""

    config: Config
    model: Model
    dataset: Dataset
    device_kind: str

    @property
    def global_batch(self) -> int:
        return self.config.global_batch

    @property
    def steps_per_epoch(self) -> int:
        return self.config.steps_per_epoch(self.dataset.num_train)

    @property
    def num_steps(self) -> int:
        return self.config.num_steps(self.dataset.num_train)

    @property
    def num_parameters(self) -> int:
        return self.model.num_parameters[self.dataset.name]


def make(raw: Mapping[str, Any], catalogue: Catalogue, machine: Machine) -> Plan:
    """Check a configuration whole; left out, `nproc_per_node` is what this machine has.

    Raises:
        ConfigError: naming every field that does not do, its value and what is allowed.
    """
    config = config_module.parse(raw)
    if "nproc_per_node" not in raw:
        config = replace(config, nproc_per_node=machine.default_ranks(config.device))
    problems = [*_unknown_names(config, catalogue), *_too_many_ranks(config, machine)]
    if problems:
        raise ConfigError(problems)
    model, dataset = catalogue.models[config.model], catalogue.datasets[config.dataset]
    if dataset.task not in model.tasks:
        fitting = ", ".join(fit.name for fit in catalogue.models_for(dataset.name))
        allowed = f"one that can learn from {dataset.name}: {fitting or 'there is none'}"
        raise ConfigError([Problem(field="model", value=config.model, allowed=allowed)])
    most = dataset.num_train // config.nproc_per_node
    if config.batch_size > most:
        allowed = (
            f"at most {most:,}, because {dataset.name} has {dataset.num_train:,} training "
            f"{dataset.sample_unit} for {config.nproc_per_node} rank(s)"
        )
        raise ConfigError([Problem(field="batch_size", value=config.batch_size, allowed=allowed)])
    return Plan(config=config, model=model, dataset=dataset, device_kind=machine.device_kind(config.device))


def ranks_in_words(num_ranks: int, device_kind: str) -> str:
    """Say how many ranks of which kind."""
    word = "GPU" if device_kind == "cuda" else "CPU rank"
    return f"{num_ranks} {word}{'' if num_ranks == 1 else 's'}"


def shown_run_dir(path: Path) -> str:
    """Return a run directory the way the command line shows it: short where it lies in the checkout."""
    path = path.absolute()
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else str(path)


def _unknown_names(config: Config, catalogue: Catalogue) -> list[Problem]:
    tables: Mapping[str, Mapping[str, Any]] = {
        "model": catalogue.models,
        "dataset": catalogue.datasets,
        "strategy": catalogue.strategies,
    }
    return [
        Problem(field=field, value=value, allowed="one of " + ", ".join(sorted(table)))
        for field, table in tables.items()
        if (value := getattr(config, field)) not in table
    ]


def _too_many_ranks(config: Config, machine: Machine) -> list[Problem]:
    kind = machine.device_kind(config.device)
    if kind == "cuda" and machine.num_gpus == 0:
        return [Problem(field="device", value="cuda", allowed="auto or cpu: this machine has no GPU")]
    most = machine.max_ranks(config.device)
    if config.nproc_per_node <= most:
        return []
    there = (
        f"this machine has {machine.num_gpus} GPU(s)"
        if kind == "cuda"
        else f"this machine has no GPU in use here and {machine.num_cores} CPU core(s)"
    )
    allowed = f"a whole number from 1 to {most}; {there}"
    return [Problem(field="nproc_per_node", value=config.nproc_per_node, allowed=allowed)]
