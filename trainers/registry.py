"""The registry of plug-ins, which register with a decorator and are discovered by package.

A new model, data set, strategy, task or mistake is one file with one decorator; no other file changes. A
file that fails to import is reported by name and does not affect the others.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from trainers.contract.catalogue import BrokenPlugin, Mistake, ModelDeclaration
from trainers.contract.config import ConfigError
from trainers.contract.config.options import Check, Problem
from trainers.files.plain_files import own_plugins
from trainers.machine.os_errors import explain

if TYPE_CHECKING:
    from torch import nn

    from trainers.contract.config import Config
    from trainers.data.dataset import DataOptions, Dataset, DataSpec, Tokenizer
    from trainers.parallel.strategy import Strategy
    from trainers.report.task import Task


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model's part of a configuration.

    Attributes:
        size: one of the model's sizes.
        pretrained_path: local folder of a pretrained model, for models that are fine-tuned.
        offline: True if nothing may be downloaded from a model hub.
        lora_rank: rank of the adapters of LoRA; 0 trains all weights.
    """

    size: str = ""
    pretrained_path: str = ""
    offline: bool = True
    lora_rank: int = 0

    @classmethod
    def of(cls, config: Config) -> ModelOptions:
        """Return the options of the configured model, which must be registered."""
        return cls(
            size=config.model_size,
            pretrained_path=config.pretrained_path,
            offline=config.hub_offline,
            lora_rank=config.lora_rank if "lora_rank" in _models[config.model].options else 0,
        )


class ModelBuilder(Protocol):
    """Builds a network for the shapes in a `DataSpec`; weights come from torch's global generator."""

    def __call__(self, spec: DataSpec, options: ModelOptions) -> nn.Module: ...


@dataclass(frozen=True, kw_only=True)
class ModelEntry(ModelDeclaration):
    """One model of the catalogue; its family is one of `FAMILIES`.

    Attributes:
        sizes: presets by name, each with a short description; the first is the default. Never empty.
        requires: pip names of packages it needs beyond requirements.txt.
        options: fields of the configuration that it uses and most models ignore, each with the pip names of
            packages that it needs if the field is set.
        tokenizer: loads the tokenizer of the pretrained model; None if the model does not read text.
    """

    build: ModelBuilder
    sizes: Mapping[str, str]
    requires: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer: Callable[[ModelOptions], Tokenizer] | None = None

    @property
    def default_size(self) -> str:
        return next(iter(self.sizes))


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """One data set of the catalogue.

    Attributes:
        needs_path: True for a user's own data, whose shapes are known only after an inspection of the files.
        optional: optional pinned packages, each with the formats that it reads.
    """

    name: str
    label: str
    create: Callable[[DataOptions], Dataset]
    needs_path: bool = False
    optional: Mapping[str, str] = field(default_factory=dict)


_WITH_DDP = Check(
    holds="strategy == 'ddp'",
    field="strategy",
    allowed="ddp where a run is broken on purpose: {mistake} is a common mistake with DDP",
)
_WITH_SEVERAL_RANKS = Check(
    holds="all > 1",
    field="nproc_per_node",
    allowed="at least 2 where a run is broken on purpose: {mistake} does nothing on one rank",
)


@dataclass(frozen=True, kw_only=True)
class MistakeEntry(Mistake):
    """One mistake of the catalogue: a class that replaces a part of training by a wrong implementation.

    Attributes:
        part: a subclass of the part it replaces; the rest of training is unchanged.
    """

    part: type


Entry = TypeVar("Entry")
Creator = TypeVar("Creator", bound="Callable[[DataOptions], Dataset]")
StrategyType = TypeVar("StrategyType", bound="Strategy")
TaskType = TypeVar("TaskType", bound="Task")
Part = TypeVar("Part")

# Allowed values of `family` in `register_model`; ddp_gui/plan/recipe.py has a rule for each.
FAMILIES = ("linear", "dense", "convolution", "recurrent", "transformer", "pretrained")
_KINDS = ("models", "datasets", "strategies", "tasks", "mistakes")

_models: dict[str, ModelEntry] = {}
_datasets: dict[str, DatasetEntry] = {}
_strategies: dict[str, type[Strategy]] = {}
_tasks: dict[str, Task] = {}
_mistakes: dict[str, MistakeEntry] = {}


def register_model(
    name: str,
    *,
    label: str,
    description: str,
    tasks: tuple[str, ...],
    sizes: Mapping[str, str] | None = None,
    family: str = "dense",
    needs_path: bool = False,
    requires: tuple[str, ...] = (),
    options: Mapping[str, tuple[str, ...]] | None = None,
    tokenizer: Callable[[ModelOptions], Tokenizer] | None = None,
) -> Callable[[ModelBuilder], ModelBuilder]:
    """Register a function that builds a network for a `DataSpec`; see `ModelEntry` for the arguments."""

    if family not in FAMILIES:
        raise ValueError(f"family of model {name} is {family!r}; allowed: {', '.join(FAMILIES)}")

    def decorate(build: ModelBuilder) -> ModelBuilder:
        entry = ModelEntry(
            name=name,
            label=label,
            description=description,
            tasks=tasks,
            build=build,
            sizes=sizes or {"standard": "the only size"},
            family=family,
            needs_path=needs_path,
            requires=requires,
            options=options or {},
            tokenizer=tokenizer,
        )
        _add(_models, name, entry, "model")
        return build

    return decorate


def register_dataset(
    name: str, *, label: str, needs_path: bool = False, optional: Mapping[str, str] | None = None
) -> Callable[[Creator], Creator]:
    """Register a class or function that creates a `Dataset` from `DataOptions`; see `DatasetEntry`."""

    def decorate(create: Creator) -> Creator:
        entry = DatasetEntry(
            name=name, label=label, create=create, needs_path=needs_path, optional=optional or {}
        )
        _add(_datasets, name, entry, "data set")
        return create

    return decorate


def register_strategy(
    name: str, *, label: str, description: str, sharing: str
) -> Callable[[type[StrategyType]], type[StrategyType]]:
    """Register a `Strategy` class.

    Args:
        description: shown next to its name in the form.
        sharing: what the ranks communicate in a step, for a run's page.
    """

    def decorate(strategy: type[StrategyType]) -> type[StrategyType]:
        if name not in _strategies:
            strategy.name, strategy.label = name, label
            strategy.description, strategy.sharing = description, sharing
            strategy.check_declarations()
        entry: type[Strategy] = strategy
        _add(_strategies, name, entry, "strategy")
        return strategy

    return decorate


def register_task(name: str) -> Callable[[type[TaskType]], type[TaskType]]:
    """Register a `Task` class under the name by which a `DataSpec` refers to it."""

    def decorate(task: type[TaskType]) -> type[TaskType]:
        if not (getattr(task, "loss_words", "") and getattr(task, "first_metric", "")):
            raise ValueError(
                f"task {name} lacks names that the page shows: define loss_words and first_metric"
            )
        entry: Task = task()
        _add(_tasks, name, entry, "task")
        return task

    return decorate


def register_mistake(
    name: str, *, label: str, description: str, hangs: bool = False, checks: tuple[Check, ...] = ()
) -> Callable[[type[Part]], type[Part]]:
    """Register a deliberately wrong subclass, which replaces its base class in training.

    Args:
        checks: conditions on the configuration, in addition to those of every mistake.
    """

    def decorate(part: type[Part]) -> type[Part]:
        entry = MistakeEntry(
            name=name,
            label=label,
            description=description,
            part=part,
            hangs=hangs,
            checks=(_WITH_DDP, _WITH_SEVERAL_RANKS, *checks),
        )
        _add(_mistakes, name, entry, "mistake")
        return part

    return decorate


def check_mistake(config: Config) -> None:
    """Check that the configured mistake exists and is possible with this configuration.

    Raises:
        ConfigError: if not; names the field, its value and the allowed values.
    """
    if not config.is_broken_on_purpose:
        return
    if (entry := _mistakes.get(config.mistake)) is None:
        allowed = f"none, or one of {', '.join(sorted(_mistakes))}"
        raise ConfigError([Problem(field="mistake", value=config.mistake, allowed=allowed)])
    if problems := [problem for check in entry.checks if (problem := check.problem(config.values()))]:
        raise ConfigError(problems)


def part(config: Config, base_class: type[Part]) -> type[Part]:
    """Return the class for a part of training: `base_class`, or the subclass of the configured mistake."""
    entry = _mistakes.get(config.mistake)
    return entry.part if entry is not None and issubclass(entry.part, base_class) else base_class


def discover(package_name: str) -> list[BrokenPlugin]:
    """Import every file of a plug-in package; return the files that failed."""
    package = importlib.import_module(package_name)
    if (user_folder := own_plugins()) is not None:
        # Import user plug-ins under the package's name, so that all processes use the same module names.
        folder = str(user_folder / package_name.rpartition(".")[2])
        if folder not in package.__path__:
            package.__path__.append(folder)
    broken = []
    seen: set[str] = set()
    # One folder at a time, because pkgutil skips a name that it has found in an earlier folder.
    module_lists = [pkgutil.iter_modules([path], prefix=f"{package_name}.") for path in package.__path__]
    for info in itertools.chain(*module_lists):
        try:
            if info.name in seen:
                raise ValueError(f"there are two files {info.name.rpartition('.')[2]}.py: rename yours")
            seen.add(info.name)
            importlib.import_module(info.name)
        except Exception as error:  # noqa: BLE001 - a plug-in is arbitrary code; its error is reported
            message = f"{type(error).__name__}: {explain(error)}"
            broken.append(BrokenPlugin(module=info.name, message=message, traceback=traceback.format_exc()))
    return broken


def discover_all() -> list[BrokenPlugin]:
    """Import all plug-ins; return the files that failed."""
    return [broken for kind in _KINDS for broken in discover(f"trainers.{kind}")]


def models() -> Mapping[str, ModelEntry]:
    """Return the models by name."""
    return _models


def datasets() -> Mapping[str, DatasetEntry]:
    """Return the data sets by name."""
    return _datasets


def strategies() -> Mapping[str, type[Strategy]]:
    """Return the strategies by name."""
    return _strategies


def tasks() -> Mapping[str, Task]:
    """Return the tasks by name."""
    return _tasks


def mistakes() -> Mapping[str, MistakeEntry]:
    """Return the mistakes by name."""
    return _mistakes


def task(name: str) -> Task:
    """Return the task of this name; a `DataSpec` refers to its task by name.

    Raises:
        ValueError: if there is none.
    """
    if name not in _tasks:
        discover("trainers.tasks")
    if name not in _tasks:
        raise ValueError(f"there is no task called {name!r}, but: {', '.join(sorted(_tasks))}")
    return _tasks[name]


def _add(table: dict[str, Entry], name: str, entry: Entry, kind: str) -> None:
    if name in table:
        raise ValueError(f"there is already a {kind} called {name!r}")
    table[name] = entry
