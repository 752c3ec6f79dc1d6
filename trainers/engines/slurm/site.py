"""The table `[slurm]` of the site file, with a subtable for each field that the form may offer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from trainers.contract.config import Config
from trainers.engines import site_file
from trainers.engines.slurm import client
from trainers.files.typed import Limit

# The page sets these options itself, so a line of the site file would conflict with them.
RESERVED_OPTIONS = frozenset(
    {
        "account", "array", "chdir", "cpus-per-task", "error", "gpus-per-node", "gres", "job-name", "mem",
        "no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "partition",
        "qos", "requeue", "signal", "time", "wait", "wrap",
    }
)  # fmt: skip
MAX_LINE = 200
_LINE = re.compile(r"--([a-z][a-z0-9-]*)(=[^\s#].*)?")
_NAME = re.compile(r"[\w.@+-]+")
AtLeastOne = Annotated[int, Limit(low=1)]


@dataclass(frozen=True, kw_only=True)
class NameRule:
    """The rule for a field that is a name.

    Attributes:
        default: Used if nothing was chosen.
        fixed: Used for all jobs; the form does not offer the field.
        allowed: The only allowed values, offered by the form; empty: any.
        hidden: The form does not offer the field.
    """

    default: str = ""
    fixed: str | None = None
    allowed: tuple[str, ...] = ()
    hidden: bool = False

    def __post_init__(self) -> None:
        for value in (self.default, self.fixed or "", *self.allowed):
            if value and not is_name(value):
                raise ValueError(f"{value!r} is not a name: letters, digits, and . _ @ + - are allowed")
        _check_choice(self.default, self.fixed, self.allowed)


@dataclass(frozen=True, kw_only=True)
class TimeRule:
    """The rule for the time limit of jobs.

    Attributes:
        default, fixed, maximum: In Slurm's format of time limits.
    """

    default: str = ""
    fixed: str | None = None
    maximum: str = ""
    hidden: bool = False

    def __post_init__(self) -> None:
        for value in (self.default, self.fixed or "", self.maximum):
            client.parse_duration(value)
        if self.default and client.parse_duration(self.default) > client.parse_duration(self.maximum):
            raise ValueError(f"default is {self.default!r}; allowed: at most {self.maximum}")
        _check_choice(self.default, self.fixed, ())


@dataclass(frozen=True, kw_only=True)
class NumberRule:
    """The rule for a number that jobs may request."""

    default: AtLeastOne | None = None
    fixed: AtLeastOne | None = None
    maximum: AtLeastOne | None = None
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.maximum is not None and (self.default or 0) > self.maximum:
            raise ValueError(f"default is {self.default}; allowed: at most {self.maximum}")
        _check_choice(self.default, self.fixed, ())


@dataclass(frozen=True, kw_only=True)
class NodesRule:
    """The rule for the number of nodes. It has no default, because the number also affects training."""

    maximum: AtLeastOne | None = None


@dataclass(frozen=True, kw_only=True)
class RestartsRule:
    """The largest number of restarts of a run after its time limit, a preemption or a node failure."""

    maximum: Annotated[int, Limit(low=0)] = 3


@dataclass(frozen=True, kw_only=True)
class LinesRule:
    """The rule for additional options of the job, as written after `#SBATCH`.

    Attributes:
        fixed: Used for all jobs.
        allowed: Offered by the form.
        default: The allowed options that are selected initially.
    """

    fixed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    default: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in (*self.fixed, *self.allowed):
            match = _LINE.fullmatch(line)
            if match is None or not line.isprintable() or len(line) > MAX_LINE:
                raise ValueError(f"{line!r} is not an option; allowed: an option such as --constraint=ib")
            if match[1] in RESERVED_OPTIONS:
                raise ValueError(f"{line!r} is not allowed, because the page itself sets --{match[1]}")
        for line in self.default:
            if line not in self.allowed:
                raise ValueError(f"default has {line!r}; allowed: {', '.join(self.allowed) or 'none'}")


@dataclass(frozen=True, kw_only=True)
class SlurmSite:
    """The table `[slurm]`. Without it, the form offers every field, and the defaults are Slurm's own."""

    partition: NameRule = field(default_factory=NameRule)
    num_nodes: NodesRule = field(default_factory=NodesRule)
    gpu_type: NameRule = field(default_factory=NameRule)
    time_limit: TimeRule = field(default_factory=TimeRule)
    memory_gb: NumberRule = field(default_factory=NumberRule)
    account: NameRule = field(default_factory=NameRule)
    qos: NameRule = field(default_factory=NameRule)
    extra_lines: LinesRule = field(default_factory=LinesRule)
    restarts: RestartsRule = field(default_factory=RestartsRule)

    def rules(self) -> Mapping[str, NameRule | TimeRule | NumberRule]:
        """Return the rules of the fields that have a default, by field."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("num_nodes", "extra_lines", "restarts")
        }

    def apply(self, config: Config) -> Config:
        """Return the configuration with the site's fixed values, and its defaults for empty fields."""
        changes: dict[str, Any] = {}
        for name, rule in self.rules().items():
            user_value = getattr(config, name)
            value = rule.fixed if rule.fixed is not None else user_value or rule.default
            if value != user_value:
                changes[name] = value
        lines = [*self.extra_lines.fixed, *config.extra_lines.splitlines()]
        return replace(config, extra_lines="\n".join(dict.fromkeys(lines)), **changes)


def read(file: Path | None) -> SlurmSite:
    """Return the rules of a site file; without a file, nothing is fixed.

    Raises:
        SiteError: If it is invalid.
    """
    return SlurmSite() if file is None else site_file.read(file, "slurm", SlurmSite)


def is_name(text: str) -> bool:
    """True if a text can be the name of a partition, an account, a QOS or a GPU type."""
    return _NAME.fullmatch(text) is not None and not text.startswith("-")


def _check_choice(default: Any, fixed: Any, allowed: tuple[str, ...]) -> None:
    if fixed is not None and (default or allowed):
        raise ValueError("fixed cannot be combined with default or allowed")
    for value in filter(None, (default,)):
        if allowed and value not in allowed:
            allowed_text = ", ".join(json.dumps(name) for name in allowed)
            raise ValueError(f"default is {value!r}; allowed: {allowed_text}")
