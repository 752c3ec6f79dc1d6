"""The head of a lesson's file: TOML whose every mistake is said with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ddp_gui.http import glossary
from ddp_gui.learn import markdown
from ddp_gui.learn.markdown import MarkdownError, Tree

MAX_CHOICES = 6
_HEADER = re.compile(r"\s*\[+\s*([\w.]+)\s*\]+\s*(?:#.*)?$")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
# The tables around a value: the name of each, and which of several it is.
Place = tuple[tuple[str, int], ...]


class LessonError(ValueError):
    """A file that is no lesson; the text names its line and says why."""

    def __init__(self, words: str, line: int) -> None:
        super().__init__(f"line {line}: {words}")
        self.line = line


class Head:
    """The lines of a head, which begins in the file's second line.

    Raises:
        LessonError: when they are no TOML.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        try:
            self.raw = tomllib.loads("\n".join(lines))
        except tomllib.TOMLDecodeError as error:
            said = _TOML_LINE.search(str(error))
            line = int(said[1]) + 1 if said else len(lines) + 1
            words = _TOML_LINE.sub("", str(error)).strip().removesuffix(".")
            raise LessonError(f"the head is no TOML: {words}", line) from error

    @property
    def top(self) -> Table:
        """Return what stands in no table, and the tables themselves."""
        return Table(self, self.raw, ())

    def line_of(self, place: Place, key: str) -> int:
        """Return the line of a key, or of the table that should have it."""
        matches = ((line, _HEADER.match(text)) for line, text in enumerate(self._lines))
        headers = [(line, found[1]) for line, found in matches if found]
        # The first table ends what stands in none.
        begin, path = -1, ""
        end = len(self._lines) if place or not headers else headers[0][0]
        for name, index in place:
            path = f"{path}.{name}".lstrip(".")
            begins = [line for line, header in headers if header == path and begin <= line < end]
            if index >= len(begins):
                continue  # it is written inline
            begin = begins[index]
            after = (line for line, header in headers if line > begin and not header.startswith(f"{path}."))
            end = min(end, next(after, end))
        wanted = re.compile(rf"""(?:\s*|.*[{{,]\s*)["']?{re.escape(key)}["']?\s*=""")
        lines = (line for line in range(max(begin, 0), end) if wanted.match(self._lines[line]))
        tables = (line for line, header in headers if header == f"{path}.{key}".lstrip("."))
        return next(lines, next(tables, begin)) + 2


def is_term(name: str) -> bool:
    """Tell whether the glossary explains a term."""
    return name in glossary.definitions()


class Table:
    """One table of the head; what was read of it is noted."""

    def __init__(self, head: Head, raw: Any, place: Place) -> None:
        self._head = head
        self._place = place
        if not isinstance(raw, dict):
            name = place[-1][0]
            raise LessonError(f"{name}: it must be a table", head.line_of(place[:-1], name))
        self.raw: Mapping[str, Any] = raw
        self._left = dict.fromkeys(raw)

    def refuse(self, key: str, words: str) -> NoReturn:
        """Raise a LessonError about a key."""
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
            return markdown.inlines(text, is_term)
        except MarkdownError as error:
            self.refuse(key, str(error))

    def optional_inlines(self, key: str) -> Tree:
        """Return a paragraph's inside; empty where the key is missing."""
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
        """Return one of some words; the first where the key is missing."""
        value = self.take(key) if key in self.raw else allowed[0]
        if value not in allowed:
            self._refuse_value(key, f"one of {', '.join(allowed)}")
        return str(value)

    def names(self, key: str, allowed: Sequence[str]) -> tuple[str, ...]:
        """Return some of the words that are allowed, at least one."""
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
            return tuple(markdown.inlines(text, is_term) for text in texts)
        except MarkdownError as error:
            self.refuse("choices", str(error))

    def require_nothing_else(self) -> None:
        for key in self._left:
            self.refuse(key, "there is no such key here")
