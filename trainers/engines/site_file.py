"""The site file (`--site site.toml`): an administrator's description of the place where runs train.

Each engine reads the table of its name as a dataclass (`trainers.files.typed`).
"""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainers.files import typed
from trainers.files.typed import FieldError, MissingFieldError, RefusedError, UnknownFieldError, shorten

MAX_BYTES = 1_000_000
# TOML has no null: a file omits an optional key instead.
_TYPE_NAMES: Mapping[Any, str] = {
    kind: name for kind, name in typed.JSON_WORDS.items() if kind is not types.NoneType
} | {str: "a text in quotes", list: "a list in brackets", dict: "a table"}

Shape = TypeVar("Shape")


class SiteError(ValueError):
    """An invalid site file; names the file, the key, its value and the allowed values."""


def tables() -> tuple[str, ...]:
    """Return the names of the tables: the folders of the engines that have a module `site`."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/site.py")))


def read(file: Path, table: str, shape: type[Shape]) -> Shape:
    """Return one table of a site file; its defaults if the table is missing.

    Args:
        table: One of `tables()`.
        shape: A dataclass. A ValueError of its `__post_init__` is reported with the key of its table.

    Raises:
        SiteError: If the file cannot be read, or has unknown keys or invalid values.
    """
    assert table in tables()
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
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
        if name not in tables():
            raise SiteError(f"{file} has {shorten(name)}; allowed: {_known_names(name, tables())}")
    try:
        return typed.read(shape, raw.get(table, {}))
    except FieldError as error:
        error.path.insert(0, table)
        raise SiteError(f"{file}{_problem(error)}") from error


def _problem(error: FieldError) -> str:
    """Return an error message, to be appended to the name of the file."""
    key = typed.field_text(error.path, first_index=1)
    if isinstance(error, UnknownFieldError):
        table, name = typed.field_text(error.path[:-1], first_index=1), str(error.path[-1])
        allowed_names = _known_names(name, typed.field_names(error.kind))
        return f" has {shorten(name)} in [{table}]; allowed: {allowed_names}"
    if isinstance(error, RefusedError):
        return f", [{key}]: {error.value}"
    allowed = typed.describe(error.kind, _TYPE_NAMES)
    if isinstance(error, MissingFieldError):
        return f" lacks {key}: {allowed}"
    return f": {key} is {shorten(error.value)}; allowed: {allowed}"


def _known_names(name: str, known: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name[: typed.MAX_SHOWN], known, n=1)
    return f"{', '.join(known)}" + (f" (did you mean {matches[0]}?)" if matches else "")
