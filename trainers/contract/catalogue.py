"""The catalogue: the plug-ins as described to the page, in the format that the training half prints.

The plug-ins declare these fields: the entries of `trainers.registry`, the classes of strategies and tasks,
and the descriptions of data sets have attributes of the same names, which `entry_of` copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

from trainers.contract.config import RanksPerReplica
from trainers.contract.config.options import Check, Option


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of a model, with its number of parameters by data set."""

    name: str
    description: str
    num_parameters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ModelDeclaration:
    """The fields of a model that its plug-in declares.

    Attributes:
        tasks: names of the tasks that it can learn.
        family: kind of network; the page derives default settings from it.
        needs_path: True if it starts from a pretrained model in a local folder.
    """

    name: str
    label: str
    description: str
    tasks: tuple[str, ...]
    family: str = "dense"
    needs_path: bool = False


@dataclass(frozen=True, kw_only=True)
class Model(ModelDeclaration):
    """A model; `missing_packages` are not installed on this machine.

    Attributes:
        options: fields of the configuration that it uses and most models ignore, each with the packages for
            it that are not installed.
    """

    sizes: tuple[Size, ...]
    strategies: tuple[str, ...]
    may_have_path: bool = False
    missing_packages: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def size(self, name: str) -> Size | None:
        """Return the size of this name; the default size if the name is empty; None if unknown."""
        if not name:
            return self.sizes[0]
        return next((size for size in self.sizes if size.name == name), None)


@dataclass(frozen=True, kw_only=True)
class CatalogueStrategy:
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
    """A mistake that can be built in.

    Attributes:
        hangs: True if a run with it hangs until the hang detection ends it.
        checks: conditions on the configuration.
    """

    name: str
    label: str
    description: str
    hangs: bool = False
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CatalogueTask:
    """A task; `trainers.report.task.Task` documents the fields."""

    name: str
    loss_words: str
    first_metric: str


@dataclass(frozen=True, kw_only=True)
class CatalogueDataset:
    """A data set; `trainers.data.dataset.DataSpec` documents most fields.

    Attributes:
        num_places: number of tokens, for a text that is cut into samples; None for other data.
        prepared: for a user's own data, the name of its prepared folder in the cache.
    """

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
class OwnData:
    """A kind of a user's own data; its data set is described after an inspection of the files."""

    name: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """A data set or package that is not installed, with instructions and the pip requirement, if any."""

    name: str
    label: str
    how: str
    requirement: str | None = None


@dataclass(frozen=True, kw_only=True)
class BrokenPlugin:
    """A plug-in file that could not be imported."""

    module: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class PrintedCatalogue:
    """The output of `python -m trainers.plugins.catalog`.

    Attributes:
        watched_paths: files whose creation or removal changes the catalogue.
    """

    models: tuple[Model, ...]
    datasets: tuple[CatalogueDataset, ...]
    own_data: tuple[OwnData, ...]
    unavailable: tuple[Unavailable, ...]
    strategies: tuple[CatalogueStrategy, ...]
    mistakes: tuple[Mistake, ...]
    tasks: tuple[CatalogueTask, ...]
    errors: tuple[BrokenPlugin, ...]
    watched_paths: tuple[str, ...] = ()


Entry = TypeVar("Entry")


def entry_of(kind: Callable[..., Entry], source: object, **values: Any) -> Entry:
    """Return an entry whose fields are the attributes of a plug-in, except for those in `values`."""
    names = [item.name for item in fields(cast("Any", kind))]
    return kind(**{name: values[name] if name in values else getattr(source, name) for name in names})
