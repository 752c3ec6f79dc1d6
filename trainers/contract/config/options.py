"""How fields are declared, checked and described."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import operator
import re
import string
import sys
import types
import typing
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trainers.files.typed import MAX_SHOWN, shorten

MAX_LISTED = 20

Topic = Literal[
    "main", "data", "model", "optimizer", "schedule", "parallel", "speed", "reproduce", "where", "teaching",
    "forward", "script",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A field's label and help, and the values it accepts.

    Attributes:
        term: the glossary term (docs/glossary.md) of the label, if any; the form shows its definition.
        only_with: another field, and its values for which this field has an effect; None: always.
        by_plugin: True if the field has an effect only with strategies, or models, that list it in `options`.
        is_path: surrounding quotes and a leading file:// are removed.
        check: raises ValueError with the allowed values if the text is invalid.
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
    by_plugin: Literal["strategy", "model", ""] = ""
    is_path: bool = False
    check: Callable[[str], object] | None = None


def setting(default: Any, **fields: Any) -> Any:
    """Return a dataclass field with a default; the other arguments become its `Setting`."""
    return field(default=default, metadata={"setting": Setting(**fields)})


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A field with an invalid value; `suggestion` is the nearest valid value."""

    field: str
    value: Any
    allowed: str
    suggestion: int | None = None

    def __str__(self) -> str:
        field = self.field if len(self.field) <= MAX_SHOWN else self.field[: MAX_SHOWN - 3] + "…"
        return f"{field} is {shorten(self.value)}; allowed: {self.allowed}."


class ConfigError(ValueError):
    """An invalid configuration; the message names each field, its value and the allowed values."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        messages = [str(problem) for problem in self.problems[:MAX_LISTED]]
        if len(self.problems) > MAX_LISTED:
            messages.append(f"And {len(self.problems) - MAX_LISTED:,} more.")
        super().__init__(" ".join(messages))


def type_of(hint: Any) -> tuple[type, bool]:
    """Return a field's type without None, and True if the field may be None."""
    parts = typing.get_args(hint)
    return next((part for part in parts if part is not type(None)), hint), bool(parts)


def coerce(value: Any, hint: Any, setting: Setting) -> Any:
    """Return `value` converted to the field's type, or raise ValueError with the allowed values."""
    allowed = allowed_text(hint, setting)
    kind, is_optional = type_of(hint)
    if is_optional and (value is None or value == ""):
        return None
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ValueError(allowed)
    if kind is str:
        return _coerce_text(value, setting, allowed)
    number = _number(value, kind, allowed)
    too_low = (setting.minimum is not None and number < setting.minimum) or (
        setting.above is not None and number <= setting.above
    )
    if too_low or (setting.maximum is not None and number > setting.maximum):
        raise ValueError(allowed)
    return number


def _coerce_text(value: Any, setting: Setting, allowed: str) -> str:
    if not isinstance(value, str) or len(value) > setting.max_length:
        raise ValueError(allowed)
    if setting.choices and value not in setting.choices:
        raise ValueError(allowed)
    if "\0" in value:
        raise ValueError(f"{allowed}, without NUL characters")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{allowed}, in valid Unicode (it contains half a surrogate pair)")
    text = plain_path(value) if setting.is_path else value.strip()
    if setting.check is not None:
        setting.check(text)
    return text


# White space and invisible characters that file managers put around a path.
_SURROUNDING = string.whitespace + "\u00a0\u200b\u200e\u200f\u202a\u202c\ufeff"


def plain_path(text: str) -> str:
    """Return a plain path from text that was copied from a shell, a browser or a file manager."""
    path = text.strip(_SURROUNDING)
    if re.fullmatch(r"<[^<>]+>", path):
        path = path[1:-1]
    while len(path) > 1 and path[0] + path[-1] in ("''", '""', "``", "“”", "„“", "‘’", "«»"):
        path = path[1:-1].strip(_SURROUNDING)
    if match := re.match(r"file:(?://(?:localhost)?)?(?=[/~])", path, re.IGNORECASE):
        path = urllib.parse.unquote(path[match.end() :])
    return re.sub(r"^\$(HOME\b|\{HOME\})", "~", path)


def _number(value: Any, kind: type, allowed: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(allowed)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(allowed) from None
    if not math.isfinite(number) or (kind is int and number != int(number)):
        raise ValueError(allowed)
    return int(number) if kind is int else number


def allowed_text(hint: Any, setting: Setting) -> str:
    """Return the description of the values that a field of this type accepts."""
    number_type, is_optional = type_of(hint)
    if number_type is bool:
        return "true or false"
    if number_type is str:
        if setting.choices:
            return "one of " + ", ".join(setting.choices)
        return f"a text of at most {setting.max_length} characters"
    kind = "a whole number" if number_type is int else "a number"
    lower = f"above {setting.above:g}" if setting.above is not None else f"from {setting.minimum:,g}"
    text = (
        f"{kind} {lower} to {setting.maximum:,.0f}"
        if number_type is int
        else f"{kind} {lower}, at most {setting.maximum:g}"
    )
    return text + (", or empty" if is_optional else "")


_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class FormulaError(ValueError):
    """A formula cannot be evaluated; the message contains it."""


def evaluate_formula(formula: str, values: Mapping[str, Any]) -> Any:
    """Evaluate a formula with these variables.

    Raises:
        FormulaError: if its syntax is not allowed, it names an unknown field, or divides by zero.
    """
    try:
        return _value(_parse_formula(formula), values)
    except (SyntaxError, LookupError, TypeError, ArithmeticError) as error:
        raise FormulaError(f"the formula {formula!r} cannot be evaluated: {error}") from error


@functools.cache
def _parse_formula(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return values[name]
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]):
            return _OPERATORS[type(kind)](_value(left, values), _value(right, values))
        case ast.BoolOp(ast.And(), parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(ast.Or(), parts):
            return any(_value(part, values) for part in parts)
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, values)
        case ast.IfExp(test, then, other):
            return _value(then if _value(test, values) else other, values)
    raise SyntaxError(f"{ast.unparse(node)} is not allowed in a formula")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A condition that a configuration must satisfy.

    Attributes:
        holds: a formula that is true for valid configurations.
        field: the field to report if the condition is violated.
        allowed: description of the allowed values; `{name}` is replaced by a field's value.
    """

    holds: str
    field: str
    allowed: str

    def problem(self, values: Mapping[str, Any]) -> Problem | None:
        """Return the problem with a configuration of these values, or None.

        Raises:
            FormulaError: if the check itself is invalid.
        """
        return None if evaluate_formula(self.holds, values) else self.violation(values)

    def violation(self, values: Mapping[str, Any]) -> Problem:
        """Return the problem, formatted with these values.

        Raises:
            FormulaError: if the check names an unknown field.
        """
        try:
            allowed = self.allowed.format_map(values)
            return Problem(field=self.field, value=values[self.field], allowed=allowed)
        except KeyError as error:
            raise FormulaError(f"the check {self.holds!r} names {error}, which is not a field") from error


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
    """A plug-in's option: its full name, type as source text, default, and label and help."""

    name: str
    kind: str
    default: OptionValue
    setting: Setting

    @property
    def hint(self) -> Any:
        return _HINTS[self.kind]


def declared_options(plugin: str, options: type[Any] | None) -> tuple[Option, ...]:
    """Return the options of a plug-in's dataclass, whose fields are made by `setting`.

    Raises:
        ValueError: if the form has no control for a field's type.
    """
    if options is None:
        return ()
    hints = typing.get_type_hints(options)
    declared = []
    for item in dataclasses.fields(options):
        hint = hints[item.name]
        kind = str(hint) if isinstance(hint, types.UnionType) else hint.__name__
        if kind not in _HINTS:
            raise ValueError(f"option {item.name} is a {kind}; allowed: {', '.join(_HINTS)}")
        default: Any = item.default
        setting = item.metadata["setting"]
        declared.append(Option(name=f"{plugin}.{item.name}", kind=kind, default=default, setting=setting))
    return tuple(declared)


def unchecked_value(value: Any) -> OptionValue:
    """Return a value if its type and size are possible for some option.

    Raises:
        ValueError: with the allowed values.
    """
    if isinstance(value, str):
        text: str = coerce(value, str, _ANY_TEXT)
        return text
    if value is None or (isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max):
        return value
    raise ValueError(f"a number, true, false or a text of at most {MAX_TEXT} characters")


def check_options(
    options: Sequence[Option], given_values: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Return the value of every option; missing ones take their defaults.

    Raises:
        ConfigError: naming each option that is unknown or out of range.
    """
    values = {option.name: option.default for option in options}
    by_name = {option.name: option for option in options}
    problems = []
    for name, value in given_values.items():
        if (option := by_name.get(name)) is None:
            allowed = f"no option of this name; the options are: {', '.join(by_name) or 'none'}"
            problems.append(Problem(field=name, value=value, allowed=allowed))
            continue
        try:
            values[name] = coerce(value, option.hint, option.setting)
        except ValueError as error:
            problems.append(Problem(field=name, value=value, allowed=str(error)))
    if problems:
        raise ConfigError(problems)
    return values


def read_options(plugin: str, options: type[Options], given_values: Mapping[str, OptionValue]) -> Options:
    """Return a plug-in's options as the dataclass that declares them.

    Raises:
        ConfigError: naming each invalid option.
    """
    values = check_options(declared_options(plugin, options), given_values)
    return options(**{name.partition(".")[2]: value for name, value in values.items()})
