"""Parser of lesson files: TOML front matter and Markdown text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ddp_gui.learn import measures
from ddp_gui.learn.lesson import (
    ChoiceQuestion,
    Inlines,
    Lesson,
    LessonHeader,
    MarkdownError,
    Picture,
    Text,
    Tree,
    parse_blocks,
)
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError
from trainers.files import typed
from trainers.files.typed import FieldError, Limit, MissingFieldError, RefusedError

Shape = TypeVar("Shape")
_HEADER = re.compile(r"\s*\[+\s*([\w.]+)\s*\]+\s*(?:#.*)?$")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")


class LessonError(ValueError):
    """A file that is not a valid lesson; the message names the line and the reason."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class FrontMatter:
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
            message = _TOML_LINE.sub("", str(error)).strip().removesuffix(".")
            raise LessonError(f"the header is not TOML: {message}", line) from error

    def read(self, kind: type[Shape], check: Callable[[Shape], None] = lambda _: None) -> Shape:
        """Return the header as a dataclass.

        Args:
            check: raises FieldError for inconsistent fields.

        Raises:
            LessonError: naming the line.
        """
        try:
            header = typed.read(kind, self.raw)
            check(header)
        except FieldError as error:
            raise LessonError(str(error), self._line_of(error.path)) from error
        return header

    def _line_of(self, path: Sequence[str | int]) -> int:
        """Return the line of a field in the file, or the line of its table if the field is missing."""
        matches = ((line, _HEADER.match(text)) for line, text in enumerate(self._lines))
        headers = [(line, match[1]) for line, match in matches if match]
        name, at, end = "", -1, len(self._lines)
        for part, next_part in zip(path, (*path[1:], 0), strict=True):
            if isinstance(part, int):
                continue
            table = f"{name}.{part}".lstrip(".")
            tables = [line for line, header in headers if header == table and at <= line < end]
            index = next_part if isinstance(next_part, int) else 0
            if index < len(tables):
                name, at = table, tables[index]
                later_headers = (
                    line for line, title in headers if line > at and not title.startswith(f"{name}.")
                )
                end = min(end, next(later_headers, end))
                continue
            # A key or an inline table is before the next header.
            last = next((line for line, _ in headers if line > at), end)
            pattern = re.compile(rf"""(?:\s*|.*[{{,]\s*)["']?{re.escape(part)}["']?\s*=""")
            at = next((line for line in range(max(at, 0), last) if pattern.match(self._lines[line])), at)
        return at + 2


MAX_BYTES = 200_000
# Maximum hang timeout: a deliberate hang must be detected and ended while the learner waits.
MAX_HANG_S = 10.0
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
    return parse(name_of(path), read_text(path))


def read_text(path: Path) -> str:
    """Return the text of a lesson file.

    Raises:
        LessonError: naming the line.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise LessonError(f"the file has more than {MAX_BYTES:,} bytes", 1)
    try:
        return raw.decode("utf-8-sig")
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
    header, lines, first = split(name, text)
    fields = header.read(LessonHeader, _check_header)
    # The part "See" is optional if a picture has its own "see" text.
    optional = ("See",) if any(picture.see for picture in fields.pictures) else ()
    parts = parse_parts(lines, first, PARTS, optional)
    return Lesson(
        **vars(fields), name=name, before=parts["Before"], see=parts["See"], explain=parts["Explain"]
    )


def split(name: str, text: str) -> tuple[FrontMatter, list[str], int]:
    """Return a lesson file's header, all of its lines, and the index of the first line after the header.

    Raises:
        LessonError: naming the line.
    """
    if not _NAME.fullmatch(name):
        raise LessonError(f"the file's name is {name!r}; allowed: lower-case letters, digits, dashes", 1)
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.strip() == _FENCE]
    if len(fences) < 2 or fences[0] != 0:
        raise LessonError(f"the file must begin with a header between two lines {_FENCE}", 1)
    return FrontMatter(lines[1 : fences[1]]), lines, fences[1] + 1


def parse_parts(
    lines: list[str], first: int, parts: Sequence[str], optional: Collection[str] = ()
) -> Mapping[str, Tree]:
    """Parse the text after the front matter into its parts, one per heading."""
    starts: dict[str, int] = {}
    for number in range(first, len(lines)):
        line = lines[number]
        if not line.startswith("## "):
            if line.strip() and not starts:
                raise LessonError(f"text is not allowed before the heading ## {parts[0]}", number + 1)
            continue
        title = line.removeprefix("## ").strip()
        if title not in parts or title in starts:
            allowed = ", ".join(f"## {part}" for part in parts)
            raise LessonError(f"a heading is {line!r}; allowed, once each: {allowed}", number + 1)
        starts[title] = number
    if missing := [part for part in parts if part not in starts and part not in optional]:
        raise LessonError(f"the part ## {missing[0]} is missing", max(starts.values(), default=first - 1) + 1)
    edges = [*sorted(starts.values()), len(lines)]
    return {part: [] for part in parts} | {
        part: _blocks(lines[start + 1 : edges[edges.index(start) + 1]], start + 1)
        for part, start in starts.items()
    }


def _blocks(lines: list[str], num_before: int) -> Tree:
    try:
        return parse_blocks("\n".join(lines))
    except MarkdownError as error:
        raise LessonError(str(error), num_before + error.line) from error


def _refusal(message: str, *path: str | int) -> FieldError:
    return RefusedError(ValueError(message), None, *path)


def _check_header(header: LessonHeader) -> None:
    """Check the fields that depend on others.

    Raises:
        FieldError: for the first inconsistent field.
    """
    num_runs = len(header.runs)
    for number, run in enumerate(header.runs):
        path = ("runs", number, "config")
        config = _parse_config(run.config, *path)
        if run.expect == "failed" and (config.on_hang != "end" or config.hang_timeout_s > MAX_HANG_S):
            allowed = f"on_hang end, and a hang_timeout_s of at most {MAX_HANG_S:g}"
            raise _refusal(f"a run expected to fail must have {allowed}", *path)
    if isinstance(header.prediction, ChoiceQuestion):
        _check_choice(header.prediction, num_runs, (), "prediction")
    else:
        _check_index(header.prediction.run, 0, num_runs, "prediction", "run")
        if header.prediction.until <= 0:
            raise _refusal("it must be above 0", "prediction", "until")
        if header.prediction.low >= header.prediction.high:
            raise _refusal("it must be above low", "prediction", "high")
    for number, picture in enumerate(header.pictures):
        _check_picture(picture, num_runs, "pictures", number)
    for number, question in enumerate(header.questions):
        attempt = question.attempt
        if attempt is not None:
            path = ("questions", number, "attempt")
            _check_index(attempt.run, 0, num_runs, *path, "run")
            for label, changes in attempt.choices.items():
                _parse_config({**header.runs[attempt.run].config, **changes}, *path, "choices", label)
        _check_choice(question, num_runs, attempt.choices if attempt else (), "questions", number)


def _parse_config(raw: Mapping[str, Any], *path: str | int) -> Config:
    try:
        return config_module.parse(raw)
    except ConfigError as error:
        raise RefusedError(error, None, *path) from error


def _check_index(index: int, low: int, end: int, *path: str | int) -> None:
    if not low <= index < end:
        raise FieldError(index, Annotated[int, Limit(low=low, high=end - 1)], *path)


def _check_condition(text: str, num_runs: int, attempts: Collection[str], *path: str | int) -> None:
    try:
        measures.check_condition(text, num_runs, attempts)
    except ValueError as error:
        raise RefusedError(error, None, *path) from error


def _check_choice(choice: ChoiceQuestion, num_runs: int, attempts: Collection[str], *path: str | int) -> None:
    """Check a question, whose conditions refer to runs by index and to attempts by choice."""
    num_choices, num_conditions = len(choice.choices), len(choice.measured)
    _check_index(choice.right, 0, num_choices, *path, "right")
    if not choice.because:
        raise MissingFieldError(None, Inlines, *path, "because")
    if not choice.measured:
        return
    path = (*path, "measured")
    if num_conditions != num_choices:
        raise _refusal(f"there are {num_conditions} conditions for {num_choices} choices", *path)
    if not choice.measured[choice.right]:
        raise _refusal(f"choice {choice.right} is the correct one, but has no condition", *path)
    for text in filter(None, choice.measured):
        _check_condition(text, num_runs, attempts, *path)


def _check_picture(picture: Picture, num_runs: int, *path: str | int) -> None:
    if picture.finding and not picture.when:
        raise MissingFieldError(None, Text, *path, "when")
    if picture.when:
        if not picture.finding:
            raise _refusal("it requires a finding, which is missing", *path, "when")
        _check_condition(picture.when, num_runs, (), *path, "when")
    if picture.waterfall is not None:
        _check_index(picture.waterfall, 1, num_runs, *path, "waterfall")
    if picture.run is not None:
        _check_index(picture.run, 0, num_runs, *path, "run")
