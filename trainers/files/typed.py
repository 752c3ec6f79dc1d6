"""Reads JSON and TOML values as the types that define their format.

A format is a dataclass, and the type of a field defines the allowed values: `bool`, `int`, `float` (finite),
`str`, `None`, `Any`, `Literal`, `list[T]`, `tuple[T, ...]`, `tuple[A, B]` for a list of that length,
`dict[K, T]`, `Mapping[K, T]`, another dataclass, unions of these, each of them with a `Limit`, and any type
with a `Parse`. Fields with a default are optional, and fields with `init=False` are not allowed. A dataclass
whose `SHORT` names one of its fields may be written as the value of this field alone. Only the standard
library is used, because `trainers.watch` reads the formats of a run with the Python of a user's script, which
may have no packages besides torch.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

SHORT = "SHORT"
MAX_SHOWN = 80
# Names of JSON types in messages; TOML has different names.
JSON_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
    Any: "any value",
    types.NoneType: "null",
}

Shape = TypeVar("Shape")
Reader = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Restricts the values of an annotated type; each limit is inclusive.

    Attributes:
        low, high: limits of a number.
        least, most: length of a text, a list or an object.
        pattern: regular expression for the complete text.
        words: description of the allowed values; empty: generated from the other limits.
    """

    low: float | None = None
    high: float | None = None
    least: int = 0
    most: int | None = None
    pattern: str = ""
    words: str = ""

    def allows(self, value: Any) -> bool:
        """Return True if a value of the annotated type is within the limits."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (not self.least or len(value) >= self.least)
            and (self.most is None or len(value) <= self.most)
            and (not self.pattern or re.fullmatch(self.pattern, value) is not None)
        )

    def describe(self, kind: str) -> str:
        """Return the description of the allowed values of a kind."""
        if self.words:
            return self.words
        if self.low is not None:
            return f"{kind} from {self.low:,}" + ("" if self.high is None else f" to {self.high:,}")
        if self.most is None:
            return f"{kind} that is not empty" if self.least else kind
        size = "at most" if not self.least else "" if self.least == self.most else f"{self.least:,} to"
        outer, comma, each = kind.partition(",")  # "a list, each a number"
        return f"{outer} of {size} {self.most:,}{comma}{each}".replace("  ", " ")


@dataclass(frozen=True)
class Parse:
    """Annotates a type whose values are written as another type.

    Attributes:
        kind: type of the written value.
        function: converts the written value; raises ValueError, or FieldError about a part of the value.
    """

    kind: Any
    function: Callable[[Any], Any]


# An integer of any size that JavaScript represents exactly.
Count = Annotated[int, Limit(low=0, high=2**53 - 1)]
PositiveCount = Annotated[int, Limit(low=1, high=2**53 - 1)]


class FieldError(ValueError):
    """A value that its field does not allow; the message names the field, the value and the allowed values.

    Attributes:
        path: names and indices (from 0) that lead to the field, from the outermost value.
        kind: the field's type.
    """

    def __init__(self, value: Any, kind: Any, *path: str | int) -> None:
        super().__init__(value, kind)
        self.path: list[str | int] = list(path)
        self.value = value
        self.kind = kind

    @property
    def field(self) -> str:
        """The path as text, such as `hosts[0].name`."""
        return field_text(self.path)

    def __str__(self) -> str:
        return f"{self.field or 'the value'} is {shorten(self.value)}; allowed: {describe(self.kind)}"


class MissingFieldError(FieldError):
    """A field without a default is missing."""

    def __str__(self) -> str:
        return f"{self.field} is missing; allowed: {describe(self.kind)}"


class UnknownFieldError(FieldError):
    """An object has a field that its type `kind` does not have."""

    def __str__(self) -> str:
        names = ", ".join(field_names(self.kind))
        return f"{shorten(self.field)} is not a field; allowed: {names}"


class RefusedError(FieldError):
    """A `__post_init__` or a `Parse` has refused the value; `value` is its ValueError."""

    def __str__(self) -> str:
        return f"{self.field}: {self.value}" if self.path else str(self.value)


def read(kind: type[Shape], value: Any, *, ignores_unknown: bool = False) -> Shape:
    """Return a JSON or TOML value as an object of a dataclass.

    Args:
        ignores_unknown: True to ignore fields that the dataclass does not have.

    Raises:
        FieldError: naming the first field that is missing, unknown, or of another type or range.
    """
    any_kind: Any = kind
    result: Shape = reader_of(any_kind, ignores_unknown)(value)
    return result


def fits(kind: Any, value: Any) -> bool:
    """Return True if a value is of a type; objects may have additional fields."""
    try:
        reader_of(kind, True)(value)
    except FieldError:
        return False
    return True


def shorten(value: Any, max_length: int = MAX_SHOWN) -> str:
    """Return a value for a message, with at most this number of characters."""
    # Format only the displayed part, because lists and objects can be deep and long.
    shown = reprlib.repr(value) if isinstance(value, list | dict) else repr(value)
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def field_text(path: list[str | int], first_index: int = 0) -> str:
    """Return a path as text; indices of lists begin with `first_index`."""
    parts = (f"[{each + first_index}]" if isinstance(each, int) else f".{each}" for each in path)
    return "".join(parts).removeprefix(".")


def field_names(kind: type[Any]) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind) if field.init]


def describe(kind: Any, words: Mapping[Any, str] = JSON_WORDS) -> str:
    """Return the description of the values that a type accepts.

    Args:
        words: names of the kinds of values; unions omit NoneType if it has no name.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated and isinstance(parts[1], Parse):
        return describe(parts[1].kind, words)
    if origin is Annotated:
        return str(parts[1].describe(describe(parts[0], words)))
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin in _UNIONS:
        return " or ".join(
            describe(each, words) for each in parts if each is not types.NoneType or each in words
        )
    if origin in (list, tuple):
        return f"{words[list]}, each {describe(parts[0], words)}"
    if dataclasses.is_dataclass(kind):
        return f"{words[str]} or {words[dict]}" if hasattr(kind, SHORT) else words[dict]
    return words[kind if origin is None else dict]


_UNIONS = (types.UnionType, typing.Union)


@functools.cache
def reader_of(kind: Any, ignores_unknown: bool = False) -> Reader:
    """Return the function that reads a value as a type; it raises FieldError."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated and isinstance(parts[1], Parse):
        return _parsed(kind, reader_of(parts[1].kind, ignores_unknown), parts[1].function)
    inner = [reader_of(each, ignores_unknown) for each in parts if _is_type(each)]
    if origin is Annotated:
        return _limited(kind, inner[0], parts[1])
    if origin in _UNIONS:
        return _one_of(kind, inner)
    if origin in (list, tuple):
        is_any_length = origin is list or parts[-1] is ...
        return _list(kind, inner[0], None if is_any_length else inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _object(kind, inner[1], int if parts[0] is int else inner[0])
    if dataclasses.is_dataclass(kind):
        return _record(kind, ignores_unknown)
    return _plain(kind, parts)


def _is_type(part: Any) -> bool:
    return part is Any or isinstance(part, type) or typing.get_origin(part) is not None


def _plain(kind: Any, choices: tuple[Any, ...]) -> Reader:
    def read_plain(value: Any) -> Any:
        # Compare the exact type, because True is an int in Python.
        if kind is not Any and (type(value) is not kind if not choices else value not in choices):
            raise FieldError(value, kind)
        return value

    def read_number(value: Any) -> float:
        # The comparison is False for NaN and infinity, and works with integers of any size.
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise FieldError(value, kind)
        return float(value)

    return read_number if kind is float else read_plain


def _limited(kind: Any, reader: Reader, limit: Limit) -> Reader:
    def read_limited(value: Any) -> Any:
        try:
            found = reader(value)
        except FieldError as error:
            # The limits describe this value, not a part of it.
            error.kind = error.kind if error.path else kind
            raise
        if not limit.allows(found):
            raise FieldError(value, kind)
        return found

    return read_limited


def _parsed(kind: Any, reader: Reader, function: Reader) -> Reader:
    def read_parsed(value: Any) -> Any:
        written = reader(value)
        try:
            return function(written)
        except FieldError:
            raise
        except ValueError as error:
            raise RefusedError(error, kind) from error

    return read_parsed


def _one_of(kind: Any, readers: list[Reader]) -> Reader:
    def read_one(value: Any) -> Any:
        inner = None
        for reader in readers:
            try:
                return reader(value)
            except FieldError as error:
                # Prefer an error inside of the value, which is more specific than an error about its type.
                inner = error if error.path or isinstance(error, RefusedError) else inner
        raise inner or FieldError(value, kind)

    return read_one


def _list(kind: Any, item: Reader, row: list[Reader] | None) -> Reader:
    """Return the reader of a list; `row` are the readers of its items if its length is fixed."""
    is_list = typing.get_origin(kind) is list

    def read_list(value: Any) -> Any:
        # Accept tuples, which `asdict` does not convert to lists.
        if type(value) not in (list, tuple) or (row is not None and len(value) != len(row)):
            raise FieldError(value, kind)
        items: list[Any] = []
        try:
            for each in value:
                items.append(item(each) if row is None else row[len(items)](each))
        except FieldError as error:
            error.path.insert(0, len(items))
            raise
        return items if is_list else tuple(items)

    return read_list


def _object(kind: Any, item: Reader, key: Callable[[str], Any]) -> Reader:
    def read_object(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise FieldError(value, kind)
        items = {}
        name = ""
        try:
            for name, each in value.items():
                items[key(name)] = item(each)
        except FieldError as error:
            error.path.insert(0, name)
            raise
        except ValueError:
            raise FieldError(value, kind) from None  # the key is not a number
        return items

    return read_object


def _record(kind: Any, ignores_unknown: bool) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    readers = {field.name: reader_of(hints[field.name], ignores_unknown) for field in fields}
    missing = dataclasses.MISSING
    required = [field.name for field in fields if field.default is field.default_factory is missing]

    def read_record(value: Any) -> Any:
        if isinstance(value, str) and hasattr(kind, SHORT):
            value = {getattr(kind, SHORT): value}
        if not isinstance(value, Mapping):
            raise FieldError(value, kind)
        values = {}
        name = ""
        try:
            for name, each in value.items():
                if name in readers:
                    values[name] = readers[name](each)
                elif not ignores_unknown:
                    raise UnknownFieldError(each, kind)
        except FieldError as error:
            error.path.insert(0, name)
            raise
        for name in required:
            if name not in values:
                raise MissingFieldError(None, hints[name], name)
        try:
            return kind(**values)
        except ValueError as error:
            raise RefusedError(error, kind) from error

    return read_record
