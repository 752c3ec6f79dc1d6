"""The configuration of a run: defines every field once, with its label, help and allowed range.

The form, the endpoints, `config.json` and the worker all read this definition. Field names are those of
torchrun and torch. Changing a field requires a new `SCHEMA_VERSION`.
"""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trainers.contract.config import options as options_module
from trainers.contract.config import sections
from trainers.contract.config.options import ConfigError, OptionValue, Problem, Setting

__all__ = ["Config", "ConfigError", "Problem", "Setting", "parse"]

SCHEMA_VERSION = 10
# Fields added by later versions have defaults, so older configurations keep their meaning.
READABLE_VERSIONS = range(1, SCHEMA_VERSION + 1)
MAX_NAME_COMPARED = 100
MAX_FIELDS = 200
# Detect a hang early in runs that are broken on purpose: users wait to see it.
MISTAKES_HANG_LIMIT_S = 5.0

# The number of ranks that share one copy of the model: a formula that every strategy declares.
RanksPerReplica = str


@dataclass(frozen=True, kw_only=True)
class Config(
    sections.Script,
    sections.Forwarding,
    sections.Teaching,
    sections.Placement,
    sections.Reproduction,
    sections.Speed,
    sections.Parallelism,
    sections.Duration,
    sections.Optimisation,
    sections.Network,
    sections.Data,
    sections.Basics,
):
    """The complete configuration of one run; frozen, every field has a default.

    A dataclass takes the fields of its last base first, so the bases are in the reverse order of the form.

    Attributes:
        plugin_options: options declared by plug-ins, by `<plug-in>.<option>`.
    """

    plugin_options: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)

    @property
    def world_size(self) -> int:
        """Number of ranks on all machines."""
        return self.num_nodes * self.nproc_per_node

    @property
    def hang_limit_s(self) -> float:
        """Seconds that a rank may be silent and idle; shorter if the run is broken on purpose."""
        limit_s = MISTAKES_HANG_LIMIT_S if self.is_broken_on_purpose else self.hang_timeout_s
        return min(limit_s, self.hang_timeout_s)

    def values(self) -> dict[str, Any]:
        """Return the variables of a plug-in's formulas: the fields, its own options, `one` and `all`."""
        short_names = {name.partition(".")[2]: value for name, value in self.plugin_options.items()}
        return {**vars(self), **self.plugin_options, **short_names, "one": 1, "all": self.world_size}

    def num_replicas(self, ranks_per_replica: RanksPerReplica) -> int:
        """Return the number of model copies that train on different samples."""
        num_sharing = int(options_module.evaluate_formula(ranks_per_replica, self.values()))
        return max(1, self.world_size // max(1, num_sharing))

    def global_batch(self, num_replicas: int) -> int:
        """Return the number of samples that all ranks together process in one step."""
        return self.batch_size * num_replicas * self.gradient_accumulation_steps

    def peak_learning_rate(self, num_replicas: int) -> float:
        """Return the learning rate after the warm-up, scaled linearly if enabled (Goyal 2017)."""
        factor = num_replicas * self.gradient_accumulation_steps if self.scale_lr else 1
        return self.learning_rate * factor

    def steps_per_epoch(self, num_train: int, num_replicas: int) -> int:
        """Return the number of global batches that cover the training samples."""
        return -(-num_train // self.global_batch(num_replicas))

    def num_steps(
        self, num_train: int, num_replicas: int, *, step: int = 0, epoch: int = 0, samples_in_epoch: int = 0
    ) -> int:
        """Return the last step of a run that continues from here with this configuration.

        Args:
            num_train: number of training samples.
            step, epoch, samples_in_epoch: the progress so far; `samples_in_epoch` counts all ranks.
        """
        steps = step
        if epoch < self.num_epochs:
            num_in_epoch = -(-(num_train - samples_in_epoch) // self.global_batch(num_replicas))
            whole_epochs = self.num_epochs - epoch - 1
            steps += num_in_epoch + whole_epochs * self.steps_per_epoch(num_train, num_replicas)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        values = {name: getattr(self, name) for name in settings()}
        return {"schema_version": SCHEMA_VERSION, **values, **self.plugin_options}

    def changed(self) -> dict[str, Any]:
        """Return model, data set and all values that differ from the defaults; `parse` accepts it."""
        defaults = default_values()
        return {
            name: value
            for name, value in self.to_json().items()
            if name in ("model", "dataset") or (name != "schema_version" and value != defaults.get(name))
        }


class NewerVersionError(ConfigError):
    """The configuration was written by a newer version of this program."""

    def __init__(self, version: int) -> None:
        allowed = " or ".join(str(number) for number in READABLE_VERSIONS)
        super().__init__([Problem(field="schema_version", value=version, allowed=allowed)])
        versions = f"it has schema {version}, and this version reads up to {SCHEMA_VERSION}"
        message = f"The configuration was made by a newer version of this program ({versions})."
        self.args = (f"{message} Open it with the newer version.",)


def settings() -> dict[str, Setting]:
    """Return each field's `Setting` by name, in the order of the form."""
    return {item.name: item.metadata["setting"] for item in fields(Config) if "setting" in item.metadata}


def default_values() -> dict[str, Any]:
    """Return each field's default by name."""
    defaults = {item.name: item.default for item in fields(Config) if "setting" in item.metadata}
    assert MISSING not in defaults.values()
    return defaults


def parse(raw: Mapping[str, Any]) -> Config:
    """Build a `Config` from JSON values; missing fields take their defaults.

    Numbers may be strings, because forms send strings.

    Raises:
        ConfigError: naming every field that is unknown, of the wrong type or out of range.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem(field="config", value=raw, allowed="one JSON object of fields")])
    known = settings()
    # Limit the number of fields: suggesting a known name for each unknown field takes time.
    if len(raw) > MAX_FIELDS:
        allowed = f"an object of at most {MAX_FIELDS} fields"
        raise ConfigError([Problem(field="config", value=f"{len(raw):,} fields", allowed=allowed)])
    types_by_name = _types()
    problems = []
    values = {}
    options = {}
    version = raw.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        # Report no other problem: a newer version may have other fields.
        raise NewerVersionError(version)
    if version not in READABLE_VERSIONS:
        allowed = " or ".join(str(number) for number in READABLE_VERSIONS)
        problems.append(Problem(field="schema_version", value=version, allowed=allowed))
    for name, value in raw.items():
        if name == "schema_version":
            continue
        is_option = options_module.NAME.fullmatch(str(name)) is not None
        if name not in known and not is_option:
            problems.append(_unknown_field(str(name), value, list(known)))
            continue
        try:
            if is_option:
                options[name] = options_module.unchecked_value(value)
                continue
            values[name] = options_module.coerce(value, types_by_name[name], known[name])
        except ValueError as error:
            problems.append(Problem(field=name, value=value, allowed=str(error)))
    if problems:
        raise ConfigError(problems)
    return Config(**values, plugin_options=options)


@functools.cache
def _types() -> Mapping[str, Any]:
    return typing.get_type_hints(Config)


def allowed_text(name: str) -> str:
    """Return the description of the values that a field accepts."""
    return options_module.allowed_text(_types()[name], settings()[name])


def type_of(name: str) -> tuple[type, bool]:
    """Return a field's type without None, and True if the field may be null."""
    return options_module.type_of(_types()[name])


def _unknown_field(name: str, value: Any, known: list[str]) -> Problem:
    matches = difflib.get_close_matches(name[:MAX_NAME_COMPARED], known, n=1)
    hint = f"did you mean {matches[0]}?" if matches else f"the fields are {', '.join(known)}"
    return Problem(field=name, value=value, allowed=f"no field of this name; {hint}")
