"""The site file (`--site site.toml`): an administrator's description of the place where runs train.

Each engine reads the table of its name. Its keys are the fields of a dataclass, and the type of a field
defines the allowed values: `bool`, `int`, `float`, `str`, `tuple[T, ...]` for a list, another dataclass for a
table. `T | None` and fields with a default are optional. A dataclass whose `SHORT` names one of its fields
may be written as the text of that field alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

TABLES = ("slurm", "ssh")
MAX_BYTES = 1_000_000
MAX_SHOWN = 80
SHORT = "SHORT"
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}

Shape = TypeVar("Shape")


class SiteError(ValueError):
    """An invalid site file; names the file, the key, its value and the allowed values."""


def read(file: Path, table: str, shape: type[Shape]) -> Shape:
    """Return one table of a site file; its defaults if the table is missing.

    Args:
        table: One of `TABLES`.
        shape: A dataclass. A ValueError of its `__post_init__` is reported with the key of its table.

    Raises:
        SiteError: If the file cannot be read, or has unknown keys or invalid values.
    """
    assert table in TABLES
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SiteError(f"{file} has more than {MAX_BYTES:,} bytes: it is not a site file")
        raw = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise SiteError(f"{file} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SiteError(f"{file} is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise SiteError(f"{file} is not TOML: {error}") from error
    for name in raw:
        if name not in TABLES:
            raise SiteError(f"{file} has {_shorten(name)}, but allowed is: {_known_names(name, TABLES)}")
    value = raw.get(table, {})
    made: Shape = _Reader(file).table(table, value, shape)
    return made


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads the values of one file."""

    file: Path

    def table(self, key: str, value: Any, shape: type[Any]) -> Any:
        """Return a dataclass built from a table.

        Args:
            key: Path of the table, as written in the file.
        """
        if not isinstance(value, Mapping):
            raise self._value_error(key, value, _allowed_text(shape))
        hints = typing.get_type_hints(shape)
        fields = {field.name: field for field in dataclasses.fields(shape)}
        for name in value:
            if name not in fields:
                raise SiteError(
                    f"{self.file} has {_shorten(name)} in [{key}], but allowed is: "
                    f"{_known_names(name, tuple(fields))}"
                )
        missing = [name for name, field in fields.items() if _is_required(field) and name not in value]
        if missing:
            raise SiteError(f"{self.file} lacks {key}.{missing[0]}: {_allowed_text(hints[missing[0]])}")
        found = {name: self.value(f"{key}.{name}", each, hints[name]) for name, each in value.items()}
        try:
            return shape(**found)
        except SiteError:
            raise
        except ValueError as error:
            raise SiteError(f"{self.file}, [{key}]: {error}") from error

    def value(self, key: str, value: Any, hint: Any) -> Any:
        """Return a value converted to its field's type."""
        kind = _without_none(hint)
        if dataclasses.is_dataclass(kind):
            if isinstance(value, str) and hasattr(kind, SHORT):
                value = {getattr(kind, SHORT): value}
            return self.table(key, value, typing.cast("type[Any]", kind))
        if typing.get_origin(kind) is tuple:
            if not isinstance(value, list):
                raise self._value_error(key, value, _allowed_text(hint))
            of = typing.get_args(kind)[0]
            return tuple(self.value(f"{key}[{number}]", each, of) for number, each in enumerate(value, 1))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        # bool is a subclass of int in Python.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._value_error(key, value, _allowed_text(hint))
        if isinstance(value, float) and not math.isfinite(value):
            raise self._value_error(key, value, _allowed_text(hint))
        return value

    def _value_error(self, key: str, value: Any, allowed: str) -> SiteError:
        return SiteError(f"{self.file}: {key} is {_shorten(value)}, but allowed is: {allowed}")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _allowed_text(hint: Any) -> str:
    """Describe the values that a type accepts."""
    kind = _without_none(hint)
    if dataclasses.is_dataclass(kind):
        return f"{_KINDS[str]} or a table" if hasattr(kind, SHORT) else "a table"
    if typing.get_origin(kind) is tuple:
        return f"a list in brackets, each {_allowed_text(typing.get_args(kind)[0])}"
    return _KINDS[kind]


def _known_names(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name[:MAX_SHOWN], known, n=1)
    return f"{', '.join(known)}" + (f" (did you mean {close[0]}?)" if close else "")


def _shorten(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 1] + "…"
