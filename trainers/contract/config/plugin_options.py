"""Options that a plug-in declares in its own file, beside the fields of every configuration.

In `config.json` and in the form an option is called `<plug-in>.<option>`. Reading a configuration takes any
such name with a plain value, because the plug-ins are not known there; the page checks them against the
catalogue before a start, and the training process against the plug-in itself.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trainers.contract.config import settings
from trainers.contract.config.settings import ConfigError, Problem, Setting

NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
MAX_TEXT = 4096

_ANY_TEXT = Setting(label="", help="", max_length=MAX_TEXT)

OptionValue = bool | int | float | str | None
Options = TypeVar("Options")

_HINTS: Mapping[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "int | None": int | None,
    "float | None": float | None,
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its whole name, its type as it is written, its default, and what people are told."""

    name: str
    kind: str
    default: OptionValue
    setting: Setting

    @property
    def hint(self) -> Any:
        return _HINTS[self.kind]

    @property
    def is_optional(self) -> bool:
        return self.kind.endswith("| None")

    @property
    def value_type(self) -> Any:
        """Its type, without the null of an optional one."""
        return _HINTS[self.kind.removesuffix(" | None")]

    def to_json(self) -> dict[str, Any]:
        """Return it for the catalogue."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Option:
        """Return what `to_json` gave."""
        about = dict(raw["setting"])
        return cls(**{**raw, "setting": Setting(**{**about, "choices": tuple(about["choices"])})})


def declared(plugin: str, options: type[Any] | None) -> tuple[Option, ...]:
    """Return the options of a plug-in's dataclass, each field made by `setting`.

    Raises:
        ValueError: when one has a type that the form has no control for.
    """
    if options is None:
        return ()
    hints = typing.get_type_hints(options)
    found = []
    for item in dataclasses.fields(options):
        hint = hints[item.name]
        kind = str(hint) if isinstance(hint, types.UnionType) else hint.__name__
        if kind not in _HINTS:
            raise ValueError(f"option {item.name} is a {kind}, but allowed is: {', '.join(_HINTS)}")
        default: Any = item.default
        setting = item.metadata["setting"]
        found.append(Option(name=f"{plugin}.{item.name}", kind=kind, default=default, setting=setting))
    return tuple(found)


def unchecked(value: Any) -> OptionValue:
    """Return a value that an option may have.

    Raises:
        ValueError: saying what is allowed.
    """
    if isinstance(value, str):
        text: str = settings.coerce(value, str, _ANY_TEXT)
        return text
    if value is None or (isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max):
        return value
    raise ValueError(f"a number, true, false or a text of at most {MAX_TEXT} characters")


def checked(options: Sequence[Option], given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Return the value of every option, those that were left out with their defaults.

    Raises:
        ConfigError: naming each that there is not, or that is out of range.
    """
    values = {option.name: option.default for option in options}
    by_name = {option.name: option for option in options}
    problems = []
    for name, value in given.items():
        if (option := by_name.get(name)) is None:
            allowed = f"no option of this name; here they are: {', '.join(by_name) or 'none'}"
            problems.append(Problem(field=name, value=value, allowed=allowed))
            continue
        try:
            values[name] = settings.coerce(value, option.hint, option.setting)
        except ValueError as error:
            problems.append(Problem(field=name, value=value, allowed=str(error)))
    if problems:
        raise ConfigError(problems)
    return values


def read(plugin: str, options: type[Options], given: Mapping[str, OptionValue]) -> Options:
    """Return a plug-in's options as the dataclass that declares them.

    Raises:
        ConfigError: naming each that cannot be used.
    """
    values = checked(declared(plugin, options), given)
    return options(**{name.partition(".")[2]: value for name, value in values.items()})
