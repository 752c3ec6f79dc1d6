"""Parser of lesson files: TOML front matter and Markdown text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ddp_gui.events.tables import span_of
from ddp_gui.http import shell
from ddp_gui.learn import lesson as lesson_module
from ddp_gui.learn import measures
from ddp_gui.learn.lesson import (
    AXES,
    BARS,
    CURVES,
    ENDS,
    METRIC,
    NUMBERS,
    Attempt,
    Choice,
    DrawnCurve,
    Lesson,
    LessonRun,
    Mark,
    MarkdownError,
    Picture,
    Question,
    SentCommand,
    Tree,
)
from trainers.contract import config as config_module
from trainers.contract.commands import COMMANDS
from trainers.contract.config import Config, ConfigError

MAX_CHOICES = 6
_HEADER = re.compile(r"\s*\[+\s*([\w.]+)\s*\]+\s*(?:#.*)?$")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
# Path to a TOML table: the name of each enclosing table and its index in an array of tables.
Place = tuple[tuple[str, int], ...]


class LessonError(ValueError):
    """A file that is not a valid lesson; the message names the line and the reason."""

    def __init__(self, words: str, line: int) -> None:
        super().__init__(f"line {line}: {words}")
        self.line = line


class Head:
    """The front matter of a lesson file. It begins in the file's second line.

    Raises:
        LessonError: if it is not valid TOML.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        try:
            self.raw = tomllib.loads("\n".join(lines))
        except tomllib.TOMLDecodeError as error:
            position = _TOML_LINE.search(str(error))
            line = int(position[1]) + 1 if position else len(lines) + 1
            words = _TOML_LINE.sub("", str(error)).strip().removesuffix(".")
            raise LessonError(f"the header is not TOML: {words}", line) from error

    @property
    def top(self) -> Table:
        """Return the root table."""
        return Table(self, self.raw, ())

    def line_of(self, place: Place, key: str) -> int:
        """Return the file's line of a key, or of its table if the key is missing."""
        matches = ((line, _HEADER.match(text)) for line, text in enumerate(self._lines))
        headers = [(line, found[1]) for line, found in matches if found]
        # The keys of the root table end at the first table header.
        begin, path = -1, ""
        end = len(self._lines) if place or not headers else headers[0][0]
        for name, index in place:
            path = f"{path}.{name}".lstrip(".")
            begins = [line for line, header in headers if header == path and begin <= line < end]
            if index >= len(begins):
                continue  # an inline table has no header
            begin = begins[index]
            after = (line for line, header in headers if line > begin and not header.startswith(f"{path}."))
            end = min(end, next(after, end))
        wanted = re.compile(rf"""(?:\s*|.*[{{,]\s*)["']?{re.escape(key)}["']?\s*=""")
        lines = (line for line in range(max(begin, 0), end) if wanted.match(self._lines[line]))
        tables = (line for line, header in headers if header == f"{path}.{key}".lstrip("."))
        return next(lines, next(tables, begin)) + 2


def is_term(name: str) -> bool:
    """Return True if the glossary explains the term."""
    return name in shell.definitions()


class Table:
    """A table of the front matter. It tracks which keys were read, so that unknown keys can be refused."""

    def __init__(self, head: Head, raw: Any, place: Place) -> None:
        self._head = head
        self._place = place
        if not isinstance(raw, dict):
            name = place[-1][0]
            raise LessonError(f"{name}: it must be a table", head.line_of(place[:-1], name))
        self.raw: Mapping[str, Any] = raw
        self._left = dict.fromkeys(raw)

    def refuse(self, key: str, words: str) -> NoReturn:
        """Raise a LessonError about a key, with its line."""
        raise LessonError(f"{key}: {words}", self._head.line_of(self._place, key))

    def _refuse_value(self, key: str, allowed: str) -> NoReturn:
        is_there = key in self.raw
        self.refuse(
            key, f"it is {self.raw[key]!r}, but allowed is: {allowed}" if is_there else "it is missing"
        )

    def take(self, key: str) -> Any:
        self._left.pop(key, None)
        return self.raw.get(key)

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value.strip():
            self._refuse_value(key, "a text")
        return str(value).strip()

    def inlines(self, key: str) -> Tree:
        text = self.text(key)
        try:
            return lesson_module.parse_inlines(text, is_term)
        except MarkdownError as error:
            self.refuse(key, str(error))

    def optional_inlines(self, key: str) -> Tree:
        """Return the inline elements of a paragraph; empty if the key is missing."""
        return self.inlines(key) if key in self.raw else []

    def whole(self, key: str, low: int, high: int) -> int:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._refuse_value(key, f"a whole number from {low} to {high}")
        return int(value)

    def number(self, key: str) -> float:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse_value(key, "a number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.take(key)
        if value not in (None, True, False):
            self._refuse_value(key, "true or false")
        return bool(value)

    def one_of(self, key: str, allowed: Sequence[str]) -> str:
        """Return a value out of `allowed`; the first one if the key is missing."""
        value = self.take(key) if key in self.raw else allowed[0]
        if value not in allowed:
            self._refuse_value(key, f"one of {', '.join(allowed)}")
        return str(value)

    def names(self, key: str, allowed: Sequence[str]) -> tuple[str, ...]:
        """Return a non-empty list of values out of `allowed`."""
        value = self.take(key)
        if not isinstance(value, list) or not value or not all(name in allowed for name in value):
            self._refuse_value(key, f"some of {', '.join(allowed)}")
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.take(key)
        if not isinstance(value, dict):
            self.refuse(key, "it must be a table")
        return dict(value)

    def table(self, key: str) -> Table:
        if key not in self.raw:
            self.refuse(key, "it is missing")
        return Table(self._head, self.take(key), (*self._place, (key, 0)))

    def tables(self, key: str, *, least: int = 0, most: int = 12) -> list[Table]:
        value = self.take(key)
        found = value if isinstance(value, list) else []
        if (value is not None and not isinstance(value, list)) or not least <= len(found) <= most:
            self.refuse(key, f"there must be {least} to {most} tables [[{key}]]")
        return [Table(self._head, raw, (*self._place, (key, number))) for number, raw in enumerate(found)]

    def choices(self) -> tuple[Tree, ...]:
        """Return the choices of a question."""
        value = self.take("choices")
        texts = value if isinstance(value, list) else []
        if not 2 <= len(texts) <= MAX_CHOICES or not all(isinstance(text, str) for text in texts):
            self.refuse("choices", f"there must be 2 to {MAX_CHOICES} texts")
        try:
            return tuple(lesson_module.parse_inlines(text, is_term) for text in texts)
        except MarkdownError as error:
            self.refuse("choices", str(error))

    def require_nothing_else(self) -> None:
        for key in self._left:
            self.refuse(key, "there is no such key here")


MAX_BYTES = 200_000
MAX_RUNS = 6
# A run that hangs on purpose must be detected and ended while the learner waits.
MAX_HANG_S = 10.0
MAX_MINUTES = 240
MAX_SMOOTHING = 10_000
# Smoothing, in steps, of the measured curve that a drawn prediction is compared with.
PREDICTED_SMOOTHING = 20
MAX_STEP = 1_000_000
PARTS = ("Before", "See", "Explain")
_FENCE = "+++"
_NUMBER = re.compile(r"^\d+[-_ ]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


def read(path: Path) -> Lesson:
    """Read and parse a lesson file.

    Raises:
        LessonError: naming the line.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise LessonError(f"the file has more than {MAX_BYTES:,} bytes", 1)
    try:
        return parse(name_of(path), raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise LessonError("the file is not UTF-8 text", raw[: error.start].count(b"\n") + 1) from error


def name_of(path: Path) -> str:
    """Return the lesson's name: the file name without its sort number and extension."""
    return _NUMBER.sub("", path.stem)


def parse(name: str, text: str) -> Lesson:
    """Parse the text of a lesson file.

    Raises:
        LessonError: naming the line.
    """
    if not _NAME.fullmatch(name):
        raise LessonError(f"the file is called {name!r}, but allowed are: small letters, digits, dashes", 1)
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.strip() == _FENCE]
    if len(fences) < 2 or fences[0] != 0:
        raise LessonError(f"the file must begin with a header between two lines {_FENCE}", 1)
    top = Head(lines[1 : fences[1]]).top
    # The part "See" is optional if a picture has its own "see" text.
    optional = ("See",) if any("see" in each for each in _tables_of(top.raw.get("pictures"))) else ()
    texts = _texts(lines, fences[1] + 1, optional)
    runs = tuple(_run(table) for table in top.tables("runs", least=1, most=MAX_RUNS))
    lesson = Lesson(
        name=name,
        title=top.text("title"),
        minutes=top.whole("minutes", 1, MAX_MINUTES),
        summary=top.text("summary"),
        runs=runs,
        prediction=_prediction(top.table("prediction"), len(runs)),
        pictures=tuple(_picture(table, len(runs)) for table in top.tables("pictures", least=1)),
        questions=tuple(_question(table, runs) for table in top.tables("questions", least=1)),
        before=texts["Before"],
        see=texts["See"],
        explain=texts["Explain"],
    )
    top.require_nothing_else()
    return lesson


def _tables_of(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(lines: list[str], first: int, optional: Collection[str]) -> Mapping[str, Tree]:
    """Parse the text after the front matter into its parts, one per heading."""
    begins: dict[str, int] = {}
    for number in range(first, len(lines)):
        line = lines[number]
        if not line.startswith("## "):
            if line.strip() and not begins:
                raise LessonError(f"there is text before the heading ## {PARTS[0]}", number + 1)
            continue
        title = line.removeprefix("## ").strip()
        if title not in PARTS or title in begins:
            allowed = ", ".join(f"## {part}" for part in PARTS)
            raise LessonError(f"a heading is {line!r}, but allowed are, once each: {allowed}", number + 1)
        begins[title] = number
    if missing := [part for part in PARTS if part not in begins and part not in optional]:
        raise LessonError(f"the part ## {missing[0]} is missing", max(begins.values(), default=first - 1) + 1)
    edges = [*sorted(begins.values()), len(lines)]
    return {part: [] for part in PARTS} | {
        part: _blocks(lines[begin + 1 : edges[edges.index(begin) + 1]], begin + 1)
        for part, begin in begins.items()
    }


def _blocks(lines: list[str], num_before: int) -> Tree:
    try:
        return lesson_module.parse_blocks("\n".join(lines), is_term)
    except MarkdownError as error:
        raise LessonError(str(error), num_before + error.line) from error


def _run(table: Table) -> LessonRun:
    made = LessonRun(
        name=table.text("name"),
        config=table.mapping("config"),
        expect=table.one_of("expect", ENDS),
        commands=tuple(map(_command, table.tables("commands"))),
    )
    table.require_nothing_else()
    config = _checked_config(made.config, table, "config")
    if made.expect == "failed" and (config.on_hang != "end" or config.hang_timeout_s > MAX_HANG_S):
        words = (
            f"a run expected to fail must have on_hang end, and a hang_timeout_s of at most {MAX_HANG_S:g}"
        )
        table.refuse("config", words)
    return made


def _command(table: Table) -> SentCommand:
    name = table.one_of("name", [name for name, command in COMMANDS.items() if command.endpoint])
    command = COMMANDS[name]
    assert command.endpoint is not None
    values = []
    for argument in command.arguments:
        given = table.take(argument.name)
        try:
            values.append(argument.checked(argument.default if given is None else given))
        except ValueError as error:
            table.refuse(argument.name, str(error))
    at_step = table.whole("at_step", 1, MAX_STEP)
    table.require_nothing_else()
    return SentCommand(at_step=at_step, name=name, endpoint=command.endpoint.name, values=tuple(values))


def _prediction(table: Table, num_runs: int) -> Choice | DrawnCurve:
    if "choices" not in table.raw:
        return _drawn_curve(table, num_runs)
    made = Choice(**_choice(table, num_runs))
    table.require_nothing_else()
    return made


def _choice(table: Table, num_runs: int, attempts: Collection[str] = ()) -> dict[str, Any]:
    """Parse a multiple-choice question into the fields of a `Choice`.

    Args:
        num_runs: number of the lesson's runs, to which conditions can refer by index.
        attempts: choices of the attempt, to which conditions can refer by label.
    """
    choices = table.choices()
    right = table.whole("right", 0, len(choices) - 1)
    return {
        "question": table.inlines("question"),
        "choices": choices,
        "right": right,
        "because": table.inlines("because"),
        "measured": _measured(table, len(choices), right, num_runs, attempts)
        if "measured" in table.raw
        else (),
    }


def _measured(
    table: Table, num_choices: int, right: int, num_runs: int, attempts: Collection[str]
) -> tuple[str, ...]:
    """Return the validated conditions, one per choice."""
    found = table.take("measured")
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        table.refuse("measured", "it must be a list of conditions")
    if len(found) != num_choices:
        table.refuse("measured", f"there are {len(found)} conditions for {num_choices} choices")
    if not found[right].strip():
        table.refuse("measured", f"choice {right} is the right one, and has no condition")
    for text in found:
        if text.strip():
            _checked_condition(table, "measured", text, num_runs, attempts)
    return tuple(text.strip() for text in found)


def _checked_condition(
    table: Table, key: str, text: str, num_runs: int, attempts: Collection[str] = ()
) -> str:
    try:
        measures.check_condition(text, num_runs, attempts)
    except ValueError as error:
        table.refuse(key, str(error))
    return text


def _drawn_curve(table: Table, num_runs: int) -> DrawnCurve:
    axis = table.one_of("axis", AXES)
    made = DrawnCurve(
        question=table.inlines("question"),
        curve=_curve(table),
        axis=axis,
        run=table.whole("run", 0, num_runs - 1),
        until=table.number("until"),
        low=table.number("low"),
        high=table.number("high"),
        smoothing=PREDICTED_SMOOTHING if axis == "step" else 0,
    )
    table.require_nothing_else()
    if made.until <= 0:
        table.refuse("until", "it must be above 0")
    if made.low >= made.high:
        table.refuse("high", "it must be above low")
    return made


def _picture(table: Table, num_runs: int) -> Picture:
    kinds = [kind for kind in _PICTURES if kind in table.raw]
    if len(kinds) != 1:
        table.refuse("caption", f"a picture has one of {', '.join(_PICTURES)}")
    finding = table.optional_inlines("finding")
    when = table.text("when") if finding or "when" in table.raw else ""
    if when and not finding:
        table.refuse("when", "it is the condition of a finding, which is missing")
    made = Picture(
        caption=table.inlines("caption"),
        see=table.optional_inlines("see"),
        finding=finding,
        when=_checked_condition(table, "when", when, num_runs) if when else "",
        **_PICTURES[kinds[0]](table, num_runs),
    )
    table.require_nothing_else()
    return made


def _curve(table: Table) -> str:
    curve = table.text("curve")
    if curve not in CURVES and not curve.startswith(METRIC):
        table.refuse("curve", f"it is {curve!r}, but allowed is: one of {', '.join(CURVES)}, {METRIC}NAME")
    return curve


def _chart(table: Table, num_runs: int) -> dict[str, Any]:  # noqa: ARG001 - all pictures are read alike
    axis = table.one_of("axis", AXES)
    smoothing = table.whole("smoothing", 0, MAX_SMOOTHING) if "smoothing" in table.raw else 0
    return {
        "curve": _curve(table),
        "axis": axis,
        "smoothing": span_of(smoothing, "step" if axis == "step" else "samples"),
        "is_logarithmic": table.flag("logarithmic"),
        "marks": tuple(map(_mark, table.tables("marks"))),
    }


def _instrument(table: Table, num_runs: int) -> dict[str, Any]:
    run = table.whole("run", 0, num_runs - 1) if "run" in table.raw else None
    return {"instrument": table.text("instrument"), "run": run}


# Parser of each kind of picture, by its key.
_PICTURES: Mapping[str, Callable[[Table, int], dict[str, Any]]] = {
    "curve": _chart,
    "numbers": lambda table, _: {"numbers": table.names("numbers", NUMBERS)},
    "bars": lambda table, _: {"bars": table.one_of("bars", BARS)},
    "waterfall": lambda table, num_runs: {"waterfall": table.whole("waterfall", 1, num_runs - 1)},
    "instrument": _instrument,
}


def _mark(table: Table) -> Mark:
    made = Mark(x=table.number("x"), words=table.text("words"))
    table.require_nothing_else()
    return made


def _question(table: Table, runs: tuple[LessonRun, ...]) -> Question:
    attempt = _attempt(table.table("attempt"), runs) if "attempt" in table.raw else None
    made = Question(**_choice(table, len(runs), attempt.choices if attempt else ()), attempt=attempt)
    table.require_nothing_else()
    return made


def _attempt(table: Table, runs: tuple[LessonRun, ...]) -> Attempt:
    made = Attempt(
        run=table.whole("run", 0, len(runs) - 1),
        label=table.text("label"),
        choices=table.mapping("choices"),
    )
    table.require_nothing_else()
    each = made.choices.values()
    if not 1 <= len(each) <= MAX_CHOICES or not all(isinstance(changes, dict) for changes in each):
        words = f"it must name 1 to {MAX_CHOICES} choices, each with the fields that it changes"
        table.refuse("choices", words)
    for changes in each:
        _checked_config({**runs[made.run].config, **changes}, table, "choices")
    return made


def _checked_config(raw: Mapping[str, Any], table: Table, key: str) -> Config:
    try:
        return config_module.parse(raw)
    except ConfigError as error:
        table.refuse(key, str(error))
