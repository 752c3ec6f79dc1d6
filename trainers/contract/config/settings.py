"""One field of the configuration: its label and help, and the values it accepts."""

from __future__ import annotations

import math
import reprlib
import types
import typing
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_SHOWN = 80
MAX_TOLD = 20

Topic = Literal[
    "main", "data", "model", "optimizer", "schedule", "parallel", "speed", "reproduce", "where", "teaching"
]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A field's label and help, and the values it accepts.

    Attributes:
        term: the term of docs/glossary.md that the label stands for, if any; the form shows its definition.
        only_with: another field and those of its values with which this one means something; None: all.
        by_strategy: it means something with the strategies that name it among their `options`.
        is_path: quotes around it and a leading file:// are removed.
        check: raises ValueError, saying what is allowed, for a text that cannot be used.
    """

    label: str
    help: str
    term: str = ""
    topic: Topic = "main"
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    catalog: Literal["models", "model_sizes", "datasets", "strategies", "mistakes", ""] = ""
    max_length: int = 200
    only_with: tuple[str, tuple[str, ...]] | None = None
    by_strategy: bool = False
    is_path: bool = False
    check: Callable[[str], object] | None = None


def setting(default: Any, **about: Any) -> Any:
    """Return a dataclass field with its default, and a `Setting` of the rest."""
    return field(default=default, metadata={"setting": Setting(**about)})


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One field that cannot be used as given; a suggestion is the nearest value that can."""

    field: str
    value: Any
    allowed: str
    suggestion: int | None = None

    def __str__(self) -> str:
        # Of lists and objects no more is written out than is shown: they may be deep and long.
        shown = reprlib.repr(self.value) if isinstance(self.value, list | dict) else repr(self.value)
        if len(shown) > MAX_SHOWN:
            shown = shown[: MAX_SHOWN - 3] + "…"
        field = self.field if len(self.field) <= MAX_SHOWN else self.field[: MAX_SHOWN - 3] + "…"
        return f"{field} is {shown}, but allowed is: {self.allowed}."


class ConfigError(ValueError):
    """A configuration that cannot be used; names each field, its value and what is allowed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        told = [str(problem) for problem in self.problems[:MAX_TOLD]]
        if len(self.problems) > MAX_TOLD:
            told.append(f"And {len(self.problems) - MAX_TOLD:,} more.")
        super().__init__(" ".join(told))


def coerce(value: Any, hint: Any, about: Setting) -> Any:
    """Return `value` as the field's type, or raise ValueError with what is allowed."""
    allowed = allowed_text(hint, about)
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
    if "\0" in value:
        raise ValueError(f"{allowed}, without NUL characters")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{allowed}, in valid Unicode (it holds half a surrogate pair)")
    text = plain_path(value) if about.is_path else value.strip()
    if about.check is not None:
        about.check(text)
    return text


def plain_path(text: str) -> str:
    """Return a path as it is, of one that was copied from a shell, a browser or a file manager."""
    path = text.strip()
    for quotes in ("''", '""', "``", "“”", "„“", "‘’", "«»"):
        if len(path) > 1 and path[0] + path[-1] == quotes:
            path = path[1:-1].strip()
    if path.lower().startswith("file://"):
        path = urllib.parse.unquote(path[7:].removeprefix("localhost"))
    return path


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


def allowed_text(hint: Any, about: Setting) -> str:
    """Say in words what a field of this type accepts."""
    optional = isinstance(hint, types.UnionType)
    base = next(part for part in typing.get_args(hint) if part is not type(None)) if optional else hint
    if base is bool:
        return "true or false"
    if base is str:
        if about.choices:
            return "one of " + ", ".join(about.choices)
        return f"a text of at most {about.max_length} characters"
    kind = "a whole number" if base is int else "a number"
    lower = f"above {about.above:g}" if about.above is not None else f"from {about.minimum:,g}"
    text = (
        f"{kind} {lower} to {about.maximum:,.0f}"
        if base is int
        else f"{kind} {lower}, at most {about.maximum:g}"
    )
    return text + (", or empty" if optional else "")
