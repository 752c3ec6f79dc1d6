"""The plan of a run: steps, batches, memory and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan.catalogue import Catalogue
from trainers.contract import config as config_module
from trainers.contract.catalogue import CatalogueDataset, CatalogueStrategy, Model, Size
from trainers.contract.config import Config, ConfigError, Problem, options, schedule
from trainers.contract.config.options import Check
from trainers.contract.config.sections import NO_MISTAKE
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import REPOSITORY

INSTALL_FINE_TUNING = "pip install -r requirements-finetune.txt"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A valid configuration, and the values that follow from it.

    Attributes:
        copy_start: links or copies the checkpoint that the run starts from into its directory.
        start_text: text about what the run inherits from that checkpoint; empty for a new model.
    """

    config: Config
    model: Model
    size: Size
    dataset: CatalogueDataset
    strategy: CatalogueStrategy
    device_kind: str
    copy_start: Callable[[RunDirectory], None] | None = None
    start_text: str = ""

    def note(self, run: RunDirectory) -> None:
        """Write a new run's record of its data, and the weights that it starts from."""
        record_data(run, self)
        if self.copy_start is not None:
            self.copy_start(run)

    @property
    def num_replicas(self) -> int:
        return self.config.num_replicas(self.strategy.ranks_per_replica)

    @property
    def global_batch(self) -> int:
        return self.config.global_batch(self.num_replicas)

    @property
    def num_train(self) -> int:
        return self.dataset.num_samples(self.config.sequence_length)

    @property
    def steps_per_epoch(self) -> int:
        return self.config.steps_per_epoch(self.num_train, self.num_replicas)

    @property
    def num_steps(self) -> int:
        return self.config.num_steps(self.num_train, self.num_replicas)

    @property
    def num_parameters(self) -> int | None:
        return self.size.num_parameters.get(self.dataset.name)

    @property
    def peak_learning_rate(self) -> float:
        return self.config.peak_learning_rate(self.num_replicas)

    @property
    def num_warmup_steps(self) -> int:
        return schedule.num_warmup_steps(self.config, self.num_steps)

    def learning_rates(self, num_points: int) -> list[float]:
        """Return the learning rate at evenly spaced steps of the run."""
        steps = [
            1 + round(point * (self.num_steps - 1) / max(1, num_points - 1)) for point in range(num_points)
        ]
        return [
            self.peak_learning_rate
            * schedule.factor_at(
                self.config, step, num_steps=self.num_steps, steps_per_epoch=self.steps_per_epoch
            )
            for step in steps
        ]


def parse(raw: Mapping[str, Any], machine: Machine, parsed: Config | None = None) -> Config:
    """Return the configuration; the default of `nproc_per_node` depends on this machine.

    Args:
        parsed: the result of parsing `raw`, if known.
    Raises:
        ConfigError: naming every field of the wrong type.
    """
    config = parsed or config_module.parse(raw)
    if "nproc_per_node" not in raw:
        config = replace(config, nproc_per_node=machine.default_ranks(config.device))
    return config


def make(config: Config, catalogue: Catalogue, machine: Machine) -> Plan:
    """Validate a complete configuration.

    Raises:
        ConfigError: naming every invalid field, its value and the allowed values.
    """
    if config.is_script:
        allowed = "empty, because scripts are started on their own page"
        raise ConfigError([Problem(field="script", value=config.script, allowed=allowed)])
    too_many = [*_too_many_ranks(config, machine), *_too_many_workers(config, machine)]
    _raise_if_any([*_unknown_names(config, catalogue), *too_many])
    model, dataset = catalogue.models[config.model], catalogue.datasets[config.dataset]
    strategy = catalogue.strategies[config.strategy]
    if dataset.task not in model.tasks:
        model_names = ", ".join(candidate.name for candidate in catalogue.models_for(dataset.name))
        allowed = f"a model for {dataset.name}: {model_names or 'there is none'}"
        raise ConfigError([Problem(field="model", value=config.model, allowed=allowed)])
    config = replace(
        config, plugin_options=options.check_options(strategy.own_options, config.plugin_options)
    )
    mistake = catalogue.mistakes.get(config.mistake)
    _raise_if_any(
        [
            *_model_problems(config, model),
            *_strategy_problems(config, model, strategy),
            *(_broken_checks(mistake.checks, config) if mistake else ()),
        ]
    )
    size = model.size(config.model_size)
    assert size is not None
    plan = Plan(
        config=config,
        model=model,
        size=size,
        dataset=dataset,
        strategy=strategy,
        device_kind=machine.device_kind(config.device),
    )
    max_batch_size = plan.num_train // plan.num_replicas
    if config.batch_size > max_batch_size:
        allowed = (
            f"at most {max_batch_size:,}, because {dataset.name} has {plan.num_train:,} training "
            f"{dataset.sample_unit} for {plan.num_replicas} copies of the model"
        )
        suggestion = max_batch_size if max_batch_size > 0 else None
        raise ConfigError(
            [Problem(field="batch_size", value=config.batch_size, allowed=allowed, suggestion=suggestion)]
        )
    return plan


class Startable(Protocol):
    """Something that the queue can start: a plan, or a script."""

    @property
    def config(self) -> Config:
        """The configuration of the run."""

    @property
    def device_kind(self) -> str:
        """The kind of devices that the run needs: cuda or cpu."""

    def note(self, run: RunDirectory) -> None:
        """Write further initial files of the run."""


def check_num_ranks(config: Config, machine: Machine) -> None:
    """Raise ConfigError if the machine has too few GPUs or cores for the ranks of a configuration."""
    _raise_if_any(_too_many_ranks(config, machine))


def ranks_text(num_ranks: int, device_kind: str) -> str:
    """Return the number and kind of ranks as text."""
    noun = "GPU" if device_kind == "cuda" else "CPU rank"
    return f"{num_ranks} {noun}{'' if num_ranks == 1 else 's'}"


def shown_run_dir(path: Path) -> str:
    """Return a run directory as the command line shows it: relative if it is in the checkout."""
    path = path.absolute()
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else str(path)


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(problems)


def _unknown_names(config: Config, catalogue: Catalogue) -> list[Problem]:
    tables: Mapping[str, Mapping[str, Any]] = {
        "model": catalogue.models,
        "dataset": catalogue.datasets,
        "strategy": catalogue.strategies,
        "mistake": {NO_MISTAKE: None, **catalogue.mistakes},
    }
    problems = []
    instructions = {entry["name"]: entry["how"] for entry in catalogue.unavailable}
    for field, table in tables.items():
        value = getattr(config, field)
        if value in table:
            continue
        allowed = "one of " + ", ".join(sorted(table))
        if field == "dataset" and value in instructions:
            allowed = f"{allowed}. {instructions[value]}"
        problems.append(Problem(field=field, value=value, allowed=allowed))
    return problems


def _model_problems(config: Config, model: Model) -> list[Problem]:
    problems = []
    if model.size(config.model_size) is None:
        allowed = "one of " + ", ".join(size.name for size in model.sizes) + ", or empty"
        problems.append(Problem(field="model_size", value=config.model_size, allowed=allowed))
    if model.missing_packages:
        packages = " and ".join(model.missing_packages)
        allowed = f"a model that can be used now; {model.name} needs {packages}: {INSTALL_FINE_TUNING}"
        problems.append(Problem(field="model", value=config.model, allowed=allowed))
    elif (model.needs_path or config.pretrained_path) and not Path(config.pretrained_path or " ").is_dir():
        allowed = f"a folder on this machine with the pretrained model for {model.name}"
        problems.append(Problem(field="pretrained_path", value=config.pretrained_path, allowed=allowed))
    for name, missing in model.options.items():
        if missing and (value := getattr(config, name)):
            allowed = f"0 without {' and '.join(missing)}: {INSTALL_FINE_TUNING}"
            problems.append(Problem(field=name, value=value, allowed=allowed))
    return problems


def _strategy_problems(config: Config, model: Model, strategy: CatalogueStrategy) -> list[Problem]:
    problems = []
    if config.strategy not in model.strategies:
        allowed = f"a strategy that can train {model.name}: {', '.join(model.strategies)}"
        problems.append(Problem(field="strategy", value=config.strategy, allowed=allowed))
    return [*problems, *_broken_checks(strategy.checks, config)]


def _broken_checks(checks: Iterable[Check], config: Config) -> list[Problem]:
    values = config.values()
    return [problem for check in checks if (problem := check.problem(values))]


def _too_many_ranks(config: Config, machine: Machine) -> list[Problem]:
    kind = machine.device_kind(config.device)
    if kind == "cuda" and machine.num_gpus == 0:
        reason = f"{machine.place} has no GPU"
        if (obstacle := machine.gpu_obstacle) is not None:
            reason = f"no GPU of this machine can be used. {obstacle.reason} {obstacle.remedy}"
        return [Problem(field="device", value="cuda", allowed=f"auto or cpu: {reason}")]
    max_ranks = machine.max_ranks(config.device)
    if config.nproc_per_node <= max_ranks:
        return []
    mig = "" if machine.max_gpus_per_run is None else f", {machine.gpu_use()}"
    machine_text = (
        f"{machine.place} has {machine.num_gpus} GPU(s){mig}"
        if kind == "cuda"
        else f"{machine.place} has no GPU in use here and {machine.num_cores} CPU core(s)"
    )
    allowed = f"a whole number from 1 to {max_ranks}; {machine_text}"
    value = config.nproc_per_node
    return [Problem(field="nproc_per_node", value=value, allowed=allowed, suggestion=max_ranks)]


def _too_many_workers(config: Config, machine: Machine) -> list[Problem]:
    num_ranks, total = config.nproc_per_node, machine.max_loader_processes
    if config.num_workers * num_ranks <= total:
        return []
    ranks = "1 rank has" if num_ranks == 1 else f"{num_ranks} ranks have"
    cores = f"{machine.num_cores} CPU core{'' if machine.num_cores == 1 else 's'}"
    needed = config.num_workers * num_ranks
    allowed = (
        f"a whole number from 0 to {total // num_ranks}: {ranks} {needed:,} loader processes in all, but at "
        f"most {total} may share {cores}"
    )
    value, max_workers = config.num_workers, total // num_ranks
    return [Problem(field="num_workers", value=value, allowed=allowed, suggestion=max_workers)]


DATA_FILE = "data.json"
MAX_TEXT_LENGTH = 2_000


def record_data(run: RunDirectory, plan: Plan) -> None:
    """Record the run's data set, and the size of its model for this data."""
    name = plan.dataset.name
    counts = {
        size.name: size.num_parameters[name] for size in plan.model.sizes if name in size.num_parameters
    }
    write_json_atomically(
        run.path / DATA_FILE, {"dataset": asdict(plan.dataset), "counts": {plan.model.name: counts}}
    )


def with_recorded_data(run: RunDirectory, catalogue: Catalogue) -> Catalogue:
    """Return the catalogue with the run's data as recorded at the run's start, if recorded."""
    try:
        recorded = read_json(run.path / DATA_FILE)
        dataset, counts = CatalogueDataset(**recorded["dataset"]), recorded["counts"]
        _check_recorded_data(dataset, counts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return catalogue
    if catalogue.datasets.get(dataset.name) == dataset:
        return catalogue
    return catalogue.with_dataset(dataset, counts)


def _check_recorded_data(dataset: CatalogueDataset, counts: Any) -> None:
    """Refuse invalid values, because a copied run may contain any file.

    Raises:
        TypeError, AttributeError: if the values are not in the format of `record_data`.
    """
    for name, value in vars(dataset).items():
        is_number = name.startswith("num_")
        is_missing = value is None and name == "num_places"
        if not is_missing and not (_is_count(value) if is_number else _is_short_text(value)):
            raise TypeError(f"{name} of the noted data")
    for model_counts in counts.values():
        if not all(map(_is_count, model_counts.values())):
            raise TypeError("the noted numbers of parameters")


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
