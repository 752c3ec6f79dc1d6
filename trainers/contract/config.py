"""The configuration of a run: every field once, with its label, help and allowed range.

The form, the endpoints, `config.json` and the worker all read this one definition. Field names are
those of torchrun and torch. Changing one is a new `SCHEMA_VERSION`.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal

SCHEMA_VERSION = 1

Topic = Literal["main", "data", "schedule", "reproduce"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a person is told about one field, and what the field accepts."""

    label: str
    help: str
    topic: Topic = "main"
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    catalog: Literal["models", "datasets", "strategies", ""] = ""
    max_length: int = 200


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One field that cannot be used as given."""

    field: str
    value: Any
    allowed: str

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 80:
            shown = shown[:77] + "…"
        return f"{self.field} is {shown}, but allowed is: {self.allowed}."


class ConfigError(ValueError):
    """A configuration that cannot be used; names each field, its value and what is allowed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(" ".join(str(problem) for problem in problems))


def _setting(default: Any, **about: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(**about)})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run's whole configuration; frozen, every field with a default."""

    model: str = _setting("cnn", label="Model", help="The network that learns.", catalog="models")
    dataset: str = _setting(
        "fashion_mnist", label="Data set", help="What it learns from.", catalog="datasets"
    )
    nproc_per_node: int = _setting(
        2,
        label="GPUs",
        help="How many processes train together: one per GPU, or ranks on the CPU where there is none.",
        minimum=1,
        maximum=1024,
    )
    batch_size: int = _setting(
        64,
        label="Batch per GPU",
        help="Samples each GPU works through in one step.",
        minimum=1,
        maximum=65536,
    )
    learning_rate: float = _setting(
        0.002, label="Learning rate", help="How far each step moves the weights.", above=0, maximum=100
    )
    num_epochs: int = _setting(
        20,
        label="Epochs",
        help="How often the whole data set is gone through.",
        minimum=1,
        maximum=100_000,
    )
    seed: int = _setting(
        0,
        label="Seed",
        help="The same seed gives the same weights, data order and result.",
        minimum=0,
        maximum=2**31 - 1,
    )
    name: str = _setting(
        "", label="Name", help="A name for the list of runs; may stay empty.", topic="reproduce"
    )
    device: str = _setting(
        "auto",
        label="Device",
        help="auto takes the GPUs where there are any, else the CPU.",
        topic="reproduce",
        choices=("auto", "cpu", "cuda"),
    )
    strategy: str = _setting(
        "ddp",
        label="Strategy",
        help="How the work is spread over the ranks.",
        topic="reproduce",
        catalog="strategies",
    )
    max_steps: int | None = _setting(
        None,
        label="Stop after steps",
        help="The run ends at this step; empty: no limit.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    eval_every_steps: int | None = _setting(
        None,
        label="Evaluate every … steps",
        help="Empty: at the end of every epoch.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    checkpoint_every_steps: int | None = _setting(
        None,
        label="Checkpoint every … steps",
        help="Empty: at the end of every epoch.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    deterministic: bool = _setting(
        False,
        label="Deterministic",
        help="Only algorithms that give the same bits every time; can be slower.",
        topic="reproduce",
    )

    @property
    def global_batch(self) -> int:
        """Samples of all ranks together in one step."""
        return self.batch_size * self.nproc_per_node

    def steps_per_epoch(self, num_train: int) -> int:
        """Return how many global batches cover the training samples."""
        return -(-num_train // self.global_batch)

    def num_steps(self, num_train: int) -> int:
        """Return the steps of the whole run."""
        steps = self.steps_per_epoch(num_train) * self.num_epochs
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def to_json(self) -> dict[str, Any]:
        """Return what `config.json` holds."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def settings() -> dict[str, Setting]:
    """Return each field's `Setting` by name, in the order of the form."""
    return {item.name: item.metadata["setting"] for item in fields(Config)}


def default_values() -> dict[str, Any]:
    """Return each field's default by name."""
    assert all(item.default is not MISSING for item in fields(Config))
    return {item.name: item.default for item in fields(Config)}


def parse(raw: Mapping[str, Any]) -> Config:
    """Build a `Config` from JSON values; missing fields take their defaults.

    Numbers may come as text, the way a form sends them.

    Raises:
        ConfigError: naming every field that is unknown, of the wrong type or out of range.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError([Problem(field="config", value=raw, allowed="one JSON object of fields")])
    known = settings()
    types_by_name = typing.get_type_hints(Config)
    problems = []
    values = {}
    version = raw.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        problems.append(Problem(field="schema_version", value=version, allowed=str(SCHEMA_VERSION)))
    for name, value in raw.items():
        if name == "schema_version":
            continue
        if name not in known:
            problems.append(_unknown_field(str(name), value, list(known)))
            continue
        try:
            values[name] = _coerce(value, types_by_name[name], known[name])
        except ValueError as error:
            problems.append(Problem(field=name, value=value, allowed=str(error)))
    if problems:
        raise ConfigError(problems)
    return Config(**values)


def allowed_text(name: str) -> str:
    """Say in words what a field accepts."""
    return _allowed(typing.get_type_hints(Config)[name], settings()[name])


def is_optional(name: str) -> bool:
    """Tell whether a field may be null."""
    return type(None) in typing.get_args(typing.get_type_hints(Config)[name])


def value_type(name: str) -> type:
    """Return a field's type, without the null of an optional one."""
    hint = typing.get_type_hints(Config)[name]
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint


def _unknown_field(name: str, value: Any, known: list[str]) -> Problem:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
    return Problem(field=name, value=value, allowed=f"no field of this name; {hint}")


def _coerce(value: Any, hint: Any, about: Setting) -> Any:
    """Return `value` as the field's type, or raise ValueError with what is allowed."""
    allowed = _allowed(hint, about)
    optional = isinstance(hint, types.UnionType)
    base = next(part for part in typing.get_args(hint) if part is not type(None)) if optional else hint
    if optional and (value is None or value == ""):
        return None
    if base is bool:
        if isinstance(value, bool):
            return value
        raise ValueError(allowed)
    if base is str:
        return _coerce_text(value, about, allowed)
    number = _number(value, base, allowed)
    too_low = (about.minimum is not None and number < about.minimum) or (
        about.above is not None and number <= about.above
    )
    if too_low or (about.maximum is not None and number > about.maximum):
        raise ValueError(allowed)
    return number


def _coerce_text(value: Any, about: Setting, allowed: str) -> str:
    if not isinstance(value, str) or len(value) > about.max_length:
        raise ValueError(allowed)
    if about.choices and value not in about.choices:
        raise ValueError(allowed)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{allowed}, each character whole (it holds half a surrogate pair)")
    return value.strip()


def _number(value: Any, base: type, allowed: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(allowed)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(allowed) from None
    if not math.isfinite(number) or (base is int and number != int(number)):
        raise ValueError(allowed)
    return int(number) if base is int else number


def _allowed(hint: Any, about: Setting) -> str:
    optional = isinstance(hint, types.UnionType)
    base = next(part for part in typing.get_args(hint) if part is not type(None)) if optional else hint
    if base is bool:
        return "true or false"
    if base is str:
        if about.choices:
            return "one of " + ", ".join(about.choices)
        return f"a text of at most {about.max_length} characters"
    kind = "a whole number" if base is int else "a number"
    lower = f"above {about.above:g}" if about.above is not None else f"from {about.minimum:,.0f}"
    text = (
        f"{kind} {lower} to {about.maximum:,.0f}"
        if base is int
        else f"{kind} {lower}, at most {about.maximum:g}"
    )
    return text + (", or empty" if optional else "")
