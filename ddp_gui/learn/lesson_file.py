"""Reads a lesson's file: a head in TOML between two lines `+++`, and text in Markdown behind it.

Whatever is wrong is said with its line, for the person who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ddp_gui.events.tables import span_of
from ddp_gui.learn import conditions, markdown
from ddp_gui.learn.head import MAX_CHOICES, Head, LessonError, Table, is_term
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
    Picture,
    Question,
    SentCommand,
)
from ddp_gui.learn.markdown import MarkdownError, Tree
from trainers.contract import config as config_module
from trainers.contract.commands import COMMANDS
from trainers.contract.config import Config, ConfigError

MAX_BYTES = 200_000
MAX_RUNS = 6
# A run that hangs on purpose must be found and ended while its learner waits.
MAX_HANG_S = 10.0
MAX_MINUTES = 240
MAX_SMOOTHING = 10_000
# Of the loss that a drawn prediction is compared with, in steps.
PREDICTED_SMOOTHING = 20
MAX_STEP = 1_000_000
PARTS = ("Before", "See", "Explain")
_FENCE = "+++"
_NUMBER = re.compile(r"^\d+[-_ ]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


def read(path: Path) -> Lesson:
    """Return the lesson of a file.

    Raises:
        LessonError: naming the line.
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise LessonError(f"the file has more than {MAX_BYTES:,} bytes", 1)
    try:
        return parse(name_of(path), raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise LessonError("the file is no text in UTF-8", raw[: error.start].count(b"\n") + 1) from error


def name_of(path: Path) -> str:
    """Return a lesson's name: that of its file, without the number that sorts it."""
    return _NUMBER.sub("", path.stem)


def parse(name: str, text: str) -> Lesson:
    """Return the lesson of a file's text.

    Raises:
        LessonError: naming the line.
    """
    if not _NAME.fullmatch(name):
        raise LessonError(f"the file is called {name!r}, but allowed are: small letters, digits, dashes", 1)
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.strip() == _FENCE]
    if len(fences) < 2 or fences[0] != 0:
        raise LessonError(f"the file must begin with a head between two lines {_FENCE}", 1)
    top = Head(lines[1 : fences[1]]).top
    # A lesson whose pictures say what to look at may leave out the part that says it of all.
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
    """Return the parts of the text behind the head, each below its heading."""
    begins: dict[str, int] = {}
    for number in range(first, len(lines)):
        line = lines[number]
        if not line.startswith("## "):
            if line.strip() and not begins:
                raise LessonError(f"text stands before the heading ## {PARTS[0]}", number + 1)
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
        return markdown.blocks("\n".join(lines), is_term)
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
        words = f"a run that is to fail must have on_hang end, and a hang_timeout_s of at most {MAX_HANG_S:g}"
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
    """Return the fields of a question with choices.

    Args:
        num_runs: the runs that its conditions can name by number.
        attempts: those that they can name by words.
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
    """Return one condition for each choice."""
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
        conditions.check(text, num_runs, attempts)
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


# The kinds of pictures, and what reads each.
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
