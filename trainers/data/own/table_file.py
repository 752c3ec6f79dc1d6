"""Reads table files (CSV, Parquet, JSON, spreadsheets) into DuckDB as rows of text.

The dialect of a CSV file (delimiter, quotes, header) is detected from its first 1,000 lines. One pass with
Python's csv module then writes the rows in a single dialect, each with its line number, and collects those
that cannot be read; DuckDB reads the result. Rejected rows, repeated headers and footers are reported.
"""

from __future__ import annotations

import csv
import datetime
import importlib
import itertools
import json
import os
import re
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from trainers.data.dataset import NotInstalledError
from trainers.data.own import formats, processes, reading
from trainers.data.own.cache import TemporaryFolder
from trainers.data.own.problems import Problems, listed, quoted
from trainers.data.own.reading import ReadingError

DELIMITERS = ("\t", ";", "|", ",")  # in order of preference
RARE_DELIMITERS = ("^", "~", "\x01", "\x1f", ":", "  ", " ")  # tried only if no common delimiter fits
NAMES = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas", " ": "spaces", "  ": "several spaces"}
LINES, MIN_LINES = 1000, 30
MAX_CHARACTERS = 2**20  # examined in a wide table
FITS = 0.8
MIN_NUMBERS = 0.3  # share of the cells of a table that is separated by spaces or colons
MIN_ORDERED = 5  # numbers that are names
MIN_SAMPLES = 10
FEATURES = ("gene", "genes", "feature", "features", "variable", "attribute", "probe", "protein", "merkmal")
MANY_ABOVE = 12  # rows above a table: they are a table too
MIN_ENDING_EMPTY = 0.05  # of the examined rows; a single longer row is more likely shifted by a delimiter
LEAST_SHARE = 0.3  # of the examined rows that a table has above another one
COMMENTS = ("#", "%", "//")
# A unit that may contain digits: 10^3/µL, x10*9/L, 10³/µl, mL/min/1.73m2.
_UNIT = re.compile(r"[\[(]?\s?(?:[x×]?\s?10(?:\s?(?:\^|\*{1,2}|E)\s?-?\d+|[⁰¹²³⁴-⁹]+)|[^\W\d]).*")
MAX_COLUMN_NAME = 200
_QUOTED = r"(?:^|[\t;|,])Q[^Q\n]*Q(?=[\t;|,]|$)"
_RULE = re.compile(r"\s*(?:[:+|]*[-=_]{2,}[-=_+:|]*)?\s*")  # a cell of a line drawn between rows
_ESCAPED = re.compile(r'\\([\\"])')
LIKE_A_NUMBER = re.compile(
    r"[^\w\s]{0,2}\s?\d(?:[\d.,'’]|[ \u00a0\u2009\u202f](?=\d{3}(?!\d)))*([eE][+-]?\d+)?"
    r"(?<![,'’])\s?(%|[€$£¥₹]|[^\W\d]{1,3})?"
)

NumberedCells = tuple[int, list[str]]  # first line of a row, from 0, and its cells


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The dialect of a CSV file.

    Attributes:
        num_above: number of lines above the first row of data.
        num_cells: number of cells in a row.
        names: column names, at most one per cell; None without a header.
        num_before_blank: number of rows above the first empty one.
        share: fraction of the examined rows that have this number of cells.
        quote: the quote character; empty if quotes are characters of the cells.
        has_escapes: True if a quote within a cell is written \\" and not "".
        may_end_empty: True if some rows end with a delimiter, which is an empty cell too many.
        has_quoted_lines: True if each line is in quotes as a whole.
        is_transposed: True if the rows are probably features, and the columns samples.
        notes: notes for the user, as sentences.
    """

    delimiter: str
    quote: str = '"'
    has_escapes: bool = False
    has_quoted_lines: bool = False
    may_end_empty: bool = False
    is_transposed: bool = False
    comment: str = ""
    ignores_space: bool = False
    num_above: int = 0
    num_cells: int = 0
    num_before_blank: int = 0
    names: tuple[str, ...] | None = None
    share: float = 0.0
    notes: tuple[str, ...] = ()

    def reader(self, lines: Iterable[str], *, is_strict: bool = False) -> Any:
        """Return a `csv.reader` of this dialect; a strict one raises an error for quotes in a wrong place."""
        if self.has_quoted_lines:
            lines = (cells[0] + "\n" if cells else "\n" for cells in csv.reader(lines, delimiter="\x1f"))
        if self.has_escapes:
            lines = (_ESCAPED.sub(lambda each: each[1].replace('"', '""'), line) for line in lines)
        if self.delimiter == " ":  # several spaces are one delimiter
            lines = (" ".join(line.split()) + "\n" for line in lines)
        elif self.delimiter == "  ":  # at least two spaces
            lines = (re.sub(r" {2,}", "\x1f", line.strip()) + "\n" for line in lines)
        return csv.reader(
            lines,
            delimiter="\x1f" if self.delimiter == "  " else self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            skipinitialspace=self.ignores_space,
            strict=is_strict and not self.ignores_space,
        )


def find_dialect(text: str, *, delimiter: str = "", has_header: bool | None = None) -> Dialect | None:
    """Detect the dialect of a table from its first lines; None if no delimiter fits.

    Args:
        delimiter, has_header: values chosen by the user, if any.
    """
    lines = text.split("\n")[:LINES]
    lines = lines[: max(MIN_LINES, MAX_CHARACTERS // (len(lines[0]) + 1))]
    first = 0
    if declared := re.fullmatch(r'"?sep=(.)"?', lines[0], flags=re.IGNORECASE):  # a hint for Excel
        delimiter, first = delimiter or declared[1], 1
    num_quoted = {each: len(re.findall(_QUOTED.replace("Q", each), text, re.M)) for each in "'\""}
    quote = "'" if num_quoted["'"] > max(4, num_quoted['"']) else '"'
    has_escapes = len(re.findall(r'[^\\]\\"', text)) > len(re.findall(r'[^\\,;|\t\n]""', text))
    csv.field_size_limit(2**27)
    candidates: list[tuple[Dialect, list[NumberedCells]]] = []
    for group in ([delimiter],) if delimiter else (DELIMITERS, RARE_DELIMITERS):
        dialects = [Dialect(delimiter=each, quote=quote, has_escapes=has_escapes) for each in group]
        candidates += [each for dialect in dialects if (each := _rows(dialect, lines, first)) is not None]
        candidates = [
            each
            for each in candidates
            if delimiter or each[0].delimiter not in " :" or _share_of_numbers(*each) >= MIN_NUMBERS
        ]
        # 18.0 8 307.0<tab>"ford pinto" is separated by spaces, and a tab is one of them.
        if any(dialect.share >= FITS and _share_of_numbers(dialect, rows) for dialect, rows in candidates):
            break
    if not candidates and text.startswith('"') and (inner := _unquoted(text)) != text:
        quoted_lines = find_dialect(inner, delimiter=delimiter, has_header=has_header)
        return quoted_lines and replace(quoted_lines, has_quoted_lines=True)
    if not candidates:
        return None
    best = max(dialect.share for dialect, _ in candidates)
    close = [each for each in candidates if each[0].share > best - 0.1]
    dialect, rows = max(close, key=lambda each: _fit(*each))
    return _with_header(dialect, rows, has_header)


def column_names(names: Sequence[str], num_cells: int) -> list[str]:
    """Return a unique, short, single-line name for each column."""
    unique: dict[str, None] = {}
    for number, name in enumerate([*names, *[""] * (num_cells - len(names))], start=1):
        name = " ".join(name.split()).strip("\ufeff\u200b") or f"column {number}"
        name = name if len(name) <= MAX_COLUMN_NAME else name[: MAX_COLUMN_NAME - 1] + "…"
        copy = 2
        while name in unique:
            name = f"{name.removesuffix(f' ({copy - 1})')} ({copy})"
            copy += 1
        unique[name] = None
    return list(unique)


def _unquoted(text: str) -> str:
    rows = csv.reader(text.split("\n"), delimiter="\x1f")
    return "\n".join(cells[0] if cells else "" for cells in rows)


def _rows(dialect: Dialect, lines: list[str], first: int) -> tuple[Dialect, list[NumberedCells]] | None:
    delimiter = dialect.delimiter
    if delimiter == "\t" and _has_stray_quotes(lines[first:-1]):
        dialect = replace(dialect, quote="", has_escapes=False)
    mark, quote = re.escape(delimiter), dialect.quote or "\0"
    pattern = f"{mark} +{dialect.quote}|^{quote}[^{quote}]*{quote} +{mark}"
    ignores_space = delimiter in (" ", "  ") or any(re.search(pattern, line) for line in lines[:50])
    dialect = replace(dialect, ignores_space=ignores_space)
    rows: list[NumberedCells] = []
    num_before_blank = 0
    reader = dialect.reader(line + "\n" for line in lines[first:])
    while True:
        line = first + reader.line_num
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            break
        except csv.Error:
            continue
        if any(cells):
            rows.append((line, cells))
        num_before_blank = num_before_blank or len(rows) * (not any(cells))
    if len(rows) > 2 and len(rows[-1][1]) != len(rows[-2][1]):
        del rows[-1]  # probably truncated, because `lines` is only the beginning of the file
    widths = Counter(len(cells) for _, cells in rows if len(cells) > 1)
    if not widths:
        return None
    width = max(widths, key=lambda width: (widths[width], width))
    above = Counter(len(row) for _, row in itertools.takewhile(lambda row: len(row[1]) != width, rows))
    tables = [num_cells for num_cells, num in above.items() if num_cells > 1 and num >= MANY_ABOVE]
    width = tables[0] if tables else width  # the first of several tables
    last = max(index for index, (_, cells) in enumerate(rows) if len(cells) == width)
    is_above_another = widths[width] > LEAST_SHARE * len(rows)
    num_rows = last + 1 if is_above_another else len(rows)
    num_longer = sum(len(cells) == width + 1 and not cells[-1] for _, cells in rows)
    return replace(
        dialect,
        num_cells=width,
        num_before_blank=num_before_blank,
        may_end_empty=num_longer > MIN_ENDING_EMPTY * len(rows),
        share=widths[width] / num_rows,
    ), rows


def _has_stray_quotes(lines: list[str]) -> bool:
    """Return True for rows of one line each, of which some have a quote that is not closed."""
    widths = {line.count("\t") for line in lines if line}
    return len(widths) == 1 and widths != {0} and any(line.count('"') % 2 for line in lines)


def _share_of_numbers(dialect: Dialect, rows: list[NumberedCells]) -> float:
    cells = [cell for _, row in rows if len(row) == dialect.num_cells for cell in row]
    return round(sum(LIKE_A_NUMBER.fullmatch(cell) is not None for cell in cells) / len(cells), 1)


def _fit(dialect: Dialect, rows: list[NumberedCells]) -> tuple[float, float]:
    """Return the share of numbers, first less that of cells with a preferred delimiter of the first row."""
    whole = [row for _, row in rows if len(row) == dialect.num_cells]
    index = DELIMITERS.index(dialect.delimiter) if dialect.delimiter in DELIMITERS else 0
    others = [mark for mark in DELIMITERS[:index] if any(mark in name for name in whole[0])]
    unsplit = sum(any(mark in cell for mark in others) for row in whole for cell in row)
    numbers = _share_of_numbers(dialect, rows)
    return numbers - round(unsplit / len(whole) / dialect.num_cells, 1), numbers


def _with_header(dialect: Dialect, rows: list[NumberedCells], has_header: bool | None) -> Dialect:
    width = dialect.num_cells
    start = _num_above_blank(dialect, rows)
    at = next(index for index in range(start, len(rows)) if len(rows[index][1]) == width)
    whole = [cells for _, cells in rows[start:] if len(cells) == width]
    is_transposed = _is_transposed(whole)
    groups: list[str] = []
    while len(whole) > 3 and _is_title(whole):
        whole, at = whole[1:], at + 1
    if len(whole) > 2 and width > 2 and _is_above_header(whole):
        groups = [next(filter(None, reversed(whole[0][: index + 1])), "") for index in range(width)]
        whole, at = whole[1:], at + 1
    notes: list[str] = []
    above = [cells for _, cells in rows[:at] if not cells[0].startswith(COMMENTS)]
    if not above and at and len(rows[at - 1][1]) == width + 1 and rows[at - 1][1][0] in COMMENTS:
        above = [rows[at - 1][1][1:]]  # a comment line with the column names
    names: list[str] | None = None
    if has_header or (has_header is None and _is_header(whole[0], whole[1:])):
        names, at = whole[0], at + 1
        if groups and len(set(names)) < width:
            names = [f"{group} {name}".strip() for group, name in zip(groups, names, strict=True)]
    elif above and has_header is None:
        names = _names_above(above, whole, notes)
    if names is None:
        notes.append("there is no line with column names: the columns are numbered.")
    else:
        start = at
        while _is_second_header(
            names, [cells for _, cells in rows[at:] if len(cells) == width], may_be_empty=at > start
        ):
            notes.append(f"the line below the column names, {', '.join(rows[at][1])[:60]}, is left out.")
            at += 1
        if names[0][:1] in COMMENTS and names[0].strip("#% "):  # as NumPy's savetxt writes them
            names = [names[0].lstrip("#% "), *names[1:]]
    num_skipped = sum(1 for _, cells in rows[:at]) - (names is not None)
    if above or any(cells[0].startswith(COMMENTS) for _, cells in rows[: max(0, at - 1)]):
        shown = " / ".join(", ".join(filter(None, cells)) for _, cells in rows[:num_skipped])
        notes.append(f"lines above the column names are skipped: {shown[:80]!r}.")
    if dialect.delimiter != ",":
        name = NAMES.get(dialect.delimiter, repr(dialect.delimiter))
        notes.append(f"cells are separated by {name}.")
    wrong = [cells[0] for _, cells in rows[at:] if len(cells) != width]
    comment = "#" if any(cell.startswith("#") for cell in wrong) else ""
    line = rows[at][0] if at < len(rows) else rows[-1][0] + 1
    return replace(
        dialect,
        num_above=line,
        is_transposed=is_transposed,
        names=None if names is None else tuple(names),
        comment=comment,
        notes=tuple(notes),
    )


def _num_above_blank(dialect: Dialect, rows: list[NumberedCells]) -> int:
    """Return the number of rows above an empty one that are not of the table, such as a title with commas."""
    num = dialect.num_before_blank
    below = [cells for _, cells in rows[num:] if len(cells) == dialect.num_cells]
    if not (num < MANY_ABOVE and len(below) > 1 and below[0] != rows[0][1]):
        return 0
    return num * (any(map(LIKE_A_NUMBER.fullmatch, below[1])) and _is_header(below[0], below[1:]))


def _is_transposed(rows: list[list[str]]) -> bool:
    """Return True if the first cells are names of features, whose values are in columns called s1, s2, ….

    A row has then either numbers or words, and some have repeated words; or the first name says it.
    """
    names, [first, *others] = [row[0] for row in rows], rows[0]
    if len(others) < MIN_SAMPLES or len(set(names)) < len(names) or any(map(LIKE_A_NUMBER.fullmatch, names)):
        return False
    kinds = set()
    for row in rows:
        cells = list(filter(None, row[1:]))
        share = sum(LIKE_A_NUMBER.fullmatch(cell) is not None for cell in cells) / max(1, len(cells))
        is_label = 1 < len(set(cells)) <= 0.5 * len(cells)
        kinds.add("number" if share > FITS else "mixed" if share > 1 - FITS else "label" if is_label else "")
    is_named = first.lower() in FEATURES and len({re.sub(r"\d+", "", name) for name in others}) == 1
    return "number" in kinds and "mixed" not in kinds and ("label" in kinds or is_named)


def _is_title(rows: list[list[str]]) -> bool:
    """Return True if the first row is a title with empty cells above a row of column groups."""
    is_one = sum(map(bool, rows[0])) == 1 and not any(map(LIKE_A_NUMBER.fullmatch, rows[0]))
    is_next_header = all(rows[1]) and _is_header(rows[1], rows[2:])
    return len(rows[0]) > 2 and is_one and bool(rows[1][0]) and not is_next_header


def _is_above_header(rows: list[list[str]]) -> bool:
    """Return True if the first row is a title with empty cells, or has names of column groups."""
    first, second, *rest = rows
    num_filled = sum(map(bool, first))
    is_title = num_filled == 1 and _is_header(second, rest)
    return (
        0 < num_filled < len(first) and all(second[1:]) and (is_title or _is_second_header(first, rows[1:]))
    )


def _names_above(above: list[list[str]], rows: list[list[str]], notes: list[str]) -> list[str] | None:
    """Return the column names of a header with fewer or more cells than the rows, or None."""
    num_names, width = len(above[-1]), len(rows[0])
    if num_names == width and _is_header(above[-1], rows):
        return above.pop()
    if num_names == width - 1 and not any(row[-1] for row in rows):
        return [*above.pop(), ""]  # every row ends with a delimiter
    if num_names == width - 1 and _are_different(rows):
        note = "the first line has one name less than the rows have cells: the first column is row names."
        notes.append(note)
        return ["row name", *above.pop()]
    if num_names > width and not any(above[-1][width:]):
        return above.pop()[:width]
    if num_names == 1:  # a header with another delimiter than the rows
        for delimiter in DELIMITERS:
            cells = [cell.strip(" \"'") for cell in above[-1][0].split(delimiter)]
            if len(cells) == width > 1 and all(cells):
                above.pop()
                return cells
    if 1 < num_names < width:
        shown = ", ".join(above[-1])[:60]
        notes.append(
            f"the line {shown} has {num_names} cells and the rows have {width}: quote cells that contain the "
            "delimiter, such as numbers with a decimal comma."
        )
    return None


def _is_header(first: list[str], rest: list[list[str]]) -> bool:
    """Return True if a row is more likely a header than data like the rows below it."""
    numbers = [index for index, cell in enumerate(first) if LIKE_A_NUMBER.fullmatch(cell)]
    counted = [int(cell) for index in numbers if (cell := first[index]).isascii() and cell.isdigit()]
    steps = {after - before for before, after in itertools.pairwise(counted)}
    is_counted = len(counted) == len(numbers) and len(counted) > 1 and len(steps) == 1 and steps != {0}
    score = 0.0
    rest = [row for row in rest if row != first]  # the names again
    if _are_ordered(first, numbers):  # such as wavelengths
        is_counted |= 2 * sum(_are_ordered(row, numbers) for row in rest) < len(rest)
    for index, cell in enumerate(first):
        below = [row[index] for row in rest if row[index]]
        is_number = sum(LIKE_A_NUMBER.fullmatch(each) is not None for each in below) > 0.7 * len(below)
        if below and is_number:
            # Names that count up (0, 1, 2, … or years) are numbers too.
            score += 0 if is_counted and index in numbers else -1 if index in numbers else bool(cell)
        elif cell and below.count(cell) > 0:
            score -= 1
        elif below and len(set(below)) <= 0.5 * len(below):
            score += 0.5
    if score == 0:
        return is_counted or (all(len(cell) < 60 for cell in first) and len(set(first)) == len(first))
    return score > 0


def _are_ordered(row: list[str], indices: list[int]) -> bool:
    """Return True for at least five cells of rising or falling numbers."""
    cells = [row[index] for index in indices]
    if len(cells) < MIN_ORDERED or not all(re.fullmatch(r"-?\d+(\.\d+)?", cell, re.ASCII) for cell in cells):
        return False
    steps = [float(after) - float(before) for before, after in itertools.pairwise(cells)]
    return min(steps) > 0 or max(steps) < 0


def _are_different(rows: list[list[str]]) -> bool:
    """Return True if the first cells may be row names, and not the integer parts before a decimal comma."""
    is_decimal = all(re.fullmatch(r"-?\d{1,4}", row[0]) and re.fullmatch(r"\d{1,2}", row[1]) for row in rows)
    is_counted = [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    return len({row[0] for row in rows}) == len(rows) and (is_counted or not is_decimal)


def _is_second_header(names: list[str], rows: list[list[str]], *, may_be_empty: bool = False) -> bool:
    """Return True if the first row is not data: it has no number where nearly all other rows have one."""
    if len(rows) < 10:
        return False
    first, *rest = rows
    matches = [
        index
        for index in range(len(names))
        if sum(LIKE_A_NUMBER.fullmatch(row[index]) is not None for row in rest) > 0.9 * len(rest)
    ]
    cells = [first[index] for index in matches]
    is_other = [
        _UNIT.fullmatch(cell) or cell[:2] == '{"' or (not re.search(r"\d", cell) and (cell or may_be_empty))
        for cell in cells
    ]
    return len(matches) > 1 and all(is_other)


TEXT_SUFFIXES = (".csv", ".tsv", ".tab")
PARQUET_SUFFIXES = (".parquet", ".pq")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
SHEET_SUFFIXES = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
BINARY_SUFFIXES = (*PARQUET_SUFFIXES, *SHEET_SUFFIXES)
TABLE_SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, *BINARY_SUFFIXES)
MAX_COLUMNS = 10_000
# DuckDB's planning time is quadratic in the number of columns, so wide tables are stored in blocks.
COLUMNS_PER_BLOCK = 500
EXPRESSIONS_AT_ONCE = 250  # divides COLUMNS_PER_BLOCK
CELLS_AT_ONCE = 2_000_000
MAX_ROW_BYTES = 16 * 2**20
MAX_ROW_LINES = 100_000
MAX_SHEET_BYTES = 512 * 2**20  # unpacked; calamine loads the whole file into memory
MAX_FOOTER = 6  # lines
MIN_SECOND = 3  # rows of a second table
MAX_START = 200  # characters of a row in a message
ROWS = "rows.csv"
DATABASE_MEMORY = "1GB"  # DuckDB spills to disk beyond this
AROUND_CELLS = " \t\r\n\u00a0\u2007\u2009\u202f\u200b\u200e\u200f\u202a\u202b\u202c\ufeff"
# Words of a sum, which may be a part of a cell such as North Total; other totals are a cell of their own.
SUMS = (
    r"(?:(?:grand|sub|sous|zwischen)?[\s-]*(?:total(?:s|e|en|i|es)?|sum(?:me|ma)?)|totaal"
    r"|gesamt(?:summe|ergebnis)?|insgesamt|somme|suma|razem|celkem|итого|всего|Σ)"
)
IDEOGRAPHIC_SUMS = "[小合总總総][计計]|합계"
_TOTAL = re.compile(
    rf"({SUMS}|{IDEOGRAPHIC_SUMS}|(?:grand|sub)?[\s-]*total(?:s|e|en|i|es)? \w+|overall|mean|average|avg|std"
    r"|stdev|median|Ø|minimum|maximum|min|max|count|mittelwert|durchschnitt|moyenne|promedio)\s*:?",
    re.IGNORECASE,
)
MAX_TOTAL = 40  # characters
_FOOTNOTE = re.compile(r"(?i)(sources?|quellen?|fuente|fonte|notes?|hinweis|stand|as of|exported|©|\*)\W")
NESTED = ("STRUCT", "MAP", "UNION", "BLOB", "GEOMETRY", "VARIANT", "BIT")
NESTED_CELLS = "its cells are lists or objects. It is left out."
MANY_BESIDE_IMAGES = 3  # columns of a table of images and their labels
MAX_NESTED, MAX_KEYS = 8, 100  # levels of objects and lists, and values of an object, that become columns
_FORMULA = re.compile(r'(?:^|[\t;|,])="[^"\n]*"(?=[\t;|,]|$)', re.M)  # ="00123" keeps zeros in Excel
QUOTE_HINT = 'Quote cells that contain a delimiter or line end, and double a quote within: "".'
SHORT_HINT = "Add the missing cells to short rows: a cell without a value still needs its delimiter."
SECOND_HINT = (
    "A second table may begin in line {line:,}, with {width:,} columns: move it to a file of its own."
)
JSON_HINT = 'Write JSON with one object for each row, in a list (pandas: orient="records") or one per line.'
AGAIN_HINT = "It may be cut off: write or copy it again."

Row = tuple[Any, ...]


def column(index: int) -> str:
    """Return the SQL name of a column."""
    return f"c{index}"


def literal(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def is_total(cell: object) -> bool:
    """Return True for a cell that is only a word for a total."""
    return _TOTAL.fullmatch(str(cell)[:MAX_TOTAL]) is not None


class _EndlessRowError(Exception):
    """A row is too long."""


class _RowLines:
    """The lines of a text, of which a reader makes rows.

    Attributes:
        start: the beginning of the current row.
        num_lines: its lines so far.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._num_characters = 0
        self.start, self.num_lines = "", 0

    def __iter__(self) -> Iterator[str]:
        """Yield the lines.

        Raises:
            _EndlessRowError: if the current row is too long, as after a quote that is never closed.
        """
        for number, line in enumerate(self._file):
            if number % 10_000 == 0:
                processes.check_time()
            if not self.num_lines:
                self.start = line[:MAX_START].rstrip()
            self.num_lines += 1
            self._num_characters += len(line)
            if self._num_characters > MAX_ROW_BYTES or self.num_lines > MAX_ROW_LINES:
                raise _EndlessRowError
            yield line

    def end_row(self) -> int:
        """Begin a row; return the number of lines of the last one."""
        num, self.num_lines, self._num_characters = self.num_lines, 0, 0
        return num

    def num_left(self) -> int:
        """Return the number of lines from the current row to the end."""
        return self.num_lines + sum(1 for _ in self._file)


@dataclass
class Rejected:
    """The rows of a text that are not read.

    Attributes:
        num_names: number of rows that are the column names again.
        num_wrong: number of rows with another number of cells than the others.
        wrong: the first five of them.
        below: those after the last row that is read, at most `MAX_FOOTER`.
        second: line, number of cells and number of rows of a table below the first one, if there may be one.
        num_unreadable: number of lines whose quotes cannot be read.
        unreadable: line and beginning of the first row with such quotes.
        open_row: line in which a row begins that does not end, and the number of lines from there; or (0, 0).
    """

    num_names: int = 0
    num_wrong: int = 0
    wrong: list[NumberedCells] = field(default_factory=list)
    below: list[NumberedCells] = field(default_factory=list)
    second: tuple[int, int, int] = (0, 0, 0)
    num_unreadable: int = 0
    unreadable: tuple[int, str] = (0, "")
    open_row: tuple[int, int] = (0, 0)

    def add(self, line: int, cells: list[str]) -> None:
        """Add a row with a wrong number of cells."""
        first_line, width, num = self.second
        is_next = width == len(cells) > 1
        self.second = (first_line, width, num + 1) if is_next else (line, len(cells), 1)
        self.below.append((line, cells))
        if len(self.below) > MAX_FOOTER:
            self.are_rows(1)

    def are_rows(self, num: int = MAX_FOOTER) -> None:
        """Count the first rows of `below` as wrong: they are no footer."""
        some = self.below[:num]
        del self.below[:num]
        self.num_wrong += len(some)
        self.wrong += some[: 5 - len(self.wrong)]

    def take_footer(self) -> list[str]:
        """Remove the last rows of `below` that are texts or totals, and return them."""
        texts: list[str] = []
        while self.below:
            cells = [cell.strip() for cell in self.below[-1][1] if cell.strip()]
            is_text = len(cells) == 1 and not LIKE_A_NUMBER.fullmatch(cells[0])
            if not (is_text or is_total(cells[0]) or _FOOTNOTE.match(cells[0])):
                break
            texts.append(", ".join(cells))
            self.below.pop()
        self.are_rows()
        return texts[::-1]


class Table:
    """A table file in DuckDB: column `row`, then c0, c1, … as text or NULL.

    `row` is the line of a text in which the row begins, and counts from 1 in other files.

    SQL reads from `rows`. A table of more than `COLUMNS_PER_BLOCK` columns is stored in several blocks; for
    each query, `rows` is a join of the blocks whose columns occur in the SQL.

    Attributes:
        path: the file.
        names: column names.
        index_columns: indices of columns that the file declares as its row index.
    """

    def __init__(
        self, path: Path, reading_options: Mapping[str, Any], *, skip_unreadable: bool, problems: Problems
    ) -> None:
        self.names: list[str] = []
        self.index_columns: set[int] = set()
        self.num_rows = 0
        self._blocks: list[str] = []
        self.path = path
        self._folder = TemporaryFolder("table")
        self._place = self._folder.path
        self._database, self._duckdb = self._open()
        try:
            suffix = path.suffix.lower()
            if suffix not in TABLE_SUFFIXES and formats.is_json_file(path):
                suffix = ".json"
            if suffix in PARQUET_SUFFIXES or suffix in JSON_SUFFIXES:
                self._read_columns(suffix, problems)
            else:
                self._read_text(suffix, reading_options, skip_unreadable, problems)
        except ReadingError as error:
            problems.fault(path.name, error.message, error.hint, line=error.line)
        except self._duckdb.Error as error:
            problems.fault(path.name, f"the table cannot be read ({_short(error)}).", AGAIN_HINT)
        if self.names and not problems.num_faults:
            self.num_rows = self.value("SELECT count(*) FROM rows")

    def execute(self, sql: str) -> Any:
        """Run SQL within the limits of time and memory; return the cursor."""
        processes.check_time()
        try:
            return self._database.execute(sql)
        except self._duckdb.InterruptException as error:
            raise processes.TookTooLongError from error
        except self._duckdb.OutOfMemoryException as error:
            raise MemoryError from error

    def select(self, sql: str) -> Any:
        """Run a SELECT on `rows`; return the cursor."""
        return self.execute(self._with_rows(sql))

    def _with_rows(self, sql: str) -> str:
        if len(self._blocks) < 2:
            return sql
        # A column name inside a string literal only adds an unnecessary block.
        indices = (int(index) for index in re.findall(r"\bc(\d{1,5})\b", sql))
        blocks = sorted({index // COLUMNS_PER_BLOCK for index in indices if index < len(self.names)}) or [0]
        tables = f"FROM {self._blocks[blocks[0]]}"
        tables += "".join(f" JOIN {self._blocks[block]} USING (row)" for block in blocks[1:])
        return f"WITH rows AS NOT MATERIALIZED ({tables}) {sql}"

    def store(self, name: str, sql: str) -> None:
        """Store the result of a SELECT on `rows` as a temporary table."""
        self.execute(f"DROP TABLE IF EXISTS {name}")
        self.execute(f"CREATE TEMP TABLE {name} AS {self._with_rows(sql)}")

    def value(self, sql: str) -> Any:
        """Return the single value of a SELECT."""
        return self.select(sql).fetchone()[0]

    def query(self, sql: str) -> list[Row]:
        """Return all rows of a SELECT."""
        rows: list[Row] = self.select(sql).fetchall()
        return rows

    def query_wide(self, expressions: Sequence[str], rest: str = "FROM rows") -> list[Row]:
        """Return the rows of a SELECT of any number of expressions, split into several queries."""
        parts = [self.query(f"SELECT {', '.join(some)} {rest}") for some in parts_of(expressions)]
        return [tuple(itertools.chain(*rows)) for rows in zip(*parts, strict=True)]

    def batches(self, columns: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield groups of columns for a query each: one column of a long table, many of a wide one."""
        return parts_of(columns, max(1, min(EXPRESSIONS_AT_ONCE, CELLS_AT_ONCE // max(1, self.num_rows))))

    def lines_where(self, condition: str) -> list[int]:
        """Return the line numbers of the first five rows that meet a condition."""
        rows = self.query(f"SELECT row FROM rows WHERE {condition} ORDER BY row LIMIT 5")
        return [row for (row,) in rows]

    def examples(self, cell: str, condition: str) -> tuple[str, int]:
        """Return, as text, cells of the first five rows that meet a condition, and the first line number."""
        some = self.query(f"SELECT row, {cell} FROM rows WHERE {condition} ORDER BY row LIMIT 5")
        return ", ".join(f"{quoted(value)} in line {line:,}" for line, value in some), some[0][0]

    def drop(self, condition: str) -> int:
        """Delete the rows that meet a condition; return their number."""
        self.store("dropped", f"SELECT row FROM rows WHERE {condition}")
        for block in self._blocks:
            self.execute(f"DELETE FROM {block} WHERE row IN (FROM dropped)")
        before, self.num_rows = self.num_rows, self.value("SELECT count(*) FROM rows")
        return before - self.num_rows

    def _create(self, cells: Sequence[str], scan: str, row: str = "row_number() OVER ()") -> None:
        """Load columns, given as SQL expressions, from a file into `rows` or blocks; skip empty rows."""
        starts = range(0, len(cells), COLUMNS_PER_BLOCK)
        self._blocks = ["rows"] if len(starts) == 1 else [f"rows{block}" for block in range(len(starts))]
        empty = []
        for start, block in zip(starts, self._blocks, strict=True):
            part = cells[start : start + COLUMNS_PER_BLOCK]
            names = [column(index) for index in range(start, start + len(part))]
            expressions = ", ".join(
                f"nullif(trim({cell}, {literal(AROUND_CELLS)}), '') AS {name}"
                for cell, name in zip(part, names, strict=True)
            )
            self.execute(f"CREATE TABLE {block} AS SELECT {row} AS row, {expressions} FROM {scan}")
            empty.append(f"SELECT row FROM {block} WHERE coalesce({', '.join(names)}, NULL) IS NULL")
        sizes = {self.execute(f"SELECT count(*) FROM {block}").fetchone()[0] for block in self._blocks}
        if len(sizes) > 1:
            raise ReadingError("its columns have different numbers of rows.", AGAIN_HINT)
        self.execute(f"CREATE TEMP TABLE empty AS {' INTERSECT '.join(empty)}")
        for block in self._blocks:
            self.execute(f"DELETE FROM {block} WHERE row IN (FROM empty)")

    def _open(self) -> tuple[Any, Any]:
        try:
            duckdb = importlib.import_module("duckdb")
        except ImportError as error:
            raise NotInstalledError(f"Tables need DuckDB, which cannot be used here ({error}).") from error
        # DuckDB may open only this folder, and the data file through a link in it.
        database = duckdb.connect(config={
            "threads": min(4, os.cpu_count() or 1), "memory_limit": DATABASE_MEMORY,
            "temp_directory": str(self._place / "spilled"), "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        })  # fmt: skip
        allowed = os.fsencode(os.path.realpath(self.path)).decode("utf-8", errors="replace")
        database.execute(f"SET allowed_directories = [{literal(str(self._place))}]")
        database.execute(f"SET allowed_paths = [{literal(allowed)}]")
        database.execute("SET enable_external_access = false")
        deadline = processes.deadline()
        if deadline < float("inf"):
            # A query cannot call `check_time`, so a timer interrupts it after the deadline.
            timer = threading.Timer(max(0.0, deadline - time.monotonic()) + 0.1, database.interrupt)
            timer.daemon = True
            timer.start()
        return database, duckdb

    # ---- texts and spreadsheets

    def _read_text(self, suffix: str, options: Mapping[str, Any], skip: bool, problems: Problems) -> None:
        text = self._place / "text"
        with self.path.open("rb") as opened:
            is_sheet = opened.read(8).startswith((b"PK", b"\xd0\xcf\x11\xe0"))
        if suffix in SHEET_SUFFIXES and is_sheet:  # some programs call a text .xls
            _write_sheet(self.path, str(options.get("sheet", "")), text, problems)
            delimiter = ","
        else:
            encoding = reading.find_encoding(self.path, str(options.get("encoding", "")))
            if encoding.note:
                problems.note(self.path.name, encoding.note)
            open_line = 0  # characters since the last line end
            with text.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
                for chunk in reading.text_chunks(self.path, encoding):
                    processes.check_time()
                    file.write(chunk)
                    open_line = len(chunk) - chunk.rfind("\n") - 1 + (0 if "\n" in chunk else open_line)
                    if open_line > MAX_ROW_BYTES:
                        message = f"a line is longer than {MAX_ROW_BYTES // 2**20} MB."
                        raise ReadingError(message, "Lines must end in a line feed.")
            delimiter = str(options.get("delimiter", ""))
        with text.open(encoding="utf-8", newline="") as file:
            start = file.read(4 * 2**20)
        has_header = options.get("header")
        dialect = self._converted(text, start, problems) or find_dialect(
            start, delimiter=delimiter, has_header=has_header
        )
        is_transposed = options.get("transposed")
        if dialect is not None and dialect.is_transposed and is_transposed is None:
            problems.fault(
                self.path.name,
                "its rows look like features, and its columns like samples.",
                "Swap them, so that each row is a sample.",
                suggested={"data_reading": json.dumps({"transposed": True})},
                action="Swap rows and columns",
            )
            return
        if dialect is not None and is_transposed:
            dialect = find_dialect(_transposed(text, dialect), delimiter=",", has_header=has_header)
        is_poor = dialect is None or dialect.share < FITS
        if suffix in SHEET_SUFFIXES and not is_sheet and is_poor:
            raise ReadingError("the spreadsheet cannot be read: it is a text.", AGAIN_HINT)
        if dialect is None:
            first = start.lstrip().partition("\n")[0]
            raise ReadingError(
                f"there is one column only, {quoted(first)}." if first else "the file is empty.",
                "Cells are separated by a comma, semicolon, tab or bar; at least two columns are needed.", 1,
            )  # fmt: skip
        for note in dialect.notes:
            problems.note(self.path.name, note)
        if dialect.num_cells > MAX_COLUMNS:
            raise _too_many_columns(f"{dialect.num_cells:,}", 1)
        rejected = _write_rows(text, dialect, has_formulas=_FORMULA.search(start) is not None)
        self._load(dialect, rejected, skip, problems)

    def _converted(self, text: Path, start: str, problems: Problems) -> Dialect | None:
        """Convert LibSVM, ARFF and fastText to CSV; return None for other texts."""
        form = formats.text_format(start)
        if not form:
            return None
        names = tuple(formats.as_csv(form, text))
        more = ", in which features that a line does not name are 0" * (form == "LibSVM")
        problems.note(self.path.name, f"it is read as {form}{more}.")
        return Dialect(delimiter=",", num_cells=len(names), names=names, share=1.0)

    def _load(self, dialect: Dialect, rejected: Rejected, skip: bool, problems: Problems) -> None:
        indices = range(dialect.num_cells)
        types = ", ".join(["'row': 'BIGINT'", *(f"'{column(index)}': 'VARCHAR'" for index in indices)])
        self._create(
            [column(index) for index in indices],
            f"read_csv({literal(str(self._place / ROWS))}, auto_detect = false, header = false, "
            f"delim = ',', quote = '\"', escape = '\"', columns = {{{types}}}, strict_mode = true, "
            f"new_line = '\\n', max_line_size = {2 * MAX_ROW_BYTES})",
            row="row",
        )
        names = list(dialect.names or ())
        self.names = column_names(names, dialect.num_cells)
        last = dialect.num_cells - 1
        if names and not "".join(names[last:]) and not self.value(f"SELECT count({column(last)}) FROM rows"):
            del self.names[last]
        if num := rejected.num_names:
            lines = "1 line" if num == 1 else f"{num:,} lines"
            problems.note(self.path.name, f"{lines} with the column names again left out.")
        self._report_rejected(rejected, dialect.num_cells, skip, problems)
        self._drop_footer(problems)

    def _drop_footer(self, problems: Problems) -> None:
        """Drop last rows that have only text in the first cell, or incomplete totals."""
        if len(self.names) < 3:
            return
        cells = ["row", *(column(index) for index in range(len(self.names)))]
        last = self.query_wide(cells, f"FROM rows ORDER BY row DESC LIMIT {MAX_FOOTER + 1}")
        texts: list[str] = []
        for index, (row, first, *others) in enumerate(last):
            above = next((x[1:] for x in last[index + 1 :] if not is_total(x[1])), None)
            if above is None:
                break
            is_incomplete = any(
                cell is None and one is not None for cell, one in zip(others, above[1:], strict=True)
            )
            # Other incomplete totals are readable rows; `findings` reports them.
            is_unusable = others[-1] is None or LIKE_A_NUMBER.fullmatch(above[0] or "") is not None
            is_note = _FOOTNOTE.match(str(first)) is not None and not _FOOTNOTE.match(str(above[0]))
            is_below = is_incomplete and is_unusable if is_total(first) else is_note or not any(others)
            if LIKE_A_NUMBER.fullmatch(first or "1") or not is_below:
                break
            texts.append(", ".join(filter(None, [first, *others])))
            self.drop(f"row = {row}")
        if texts:
            self._note_footer(texts[::-1], problems)

    def _note_footer(self, texts: Sequence[str], problems: Problems) -> None:
        shown = quoted(" / ".join(texts))
        problems.note(self.path.name, f"below the table there is {shown}. It is left out.")

    def _report_rejected(self, rejected: Rejected, num_cells: int, skip: bool, problems: Problems) -> None:
        if footer := rejected.take_footer():
            self._note_footer(footer, problems)
        location = self.path.name
        if num := rejected.num_wrong:
            which = "1 row has" if num == 1 else f"{num:,} rows have"
            shown = ", ".join(f"line {line:,} has {len(cells):,}" for line, cells in rejected.wrong)
            shown += f" and {num - 5:,} more" if num > 5 else ""
            message = f"{which} another number of cells than {num_cells}: {shown}."
            line, width, num_second = rejected.second
            widths = [len(cells) for _, cells in rejected.wrong]
            hints = [QUOTE_HINT] * (max(widths) > num_cells) + [SHORT_HINT] * (min(widths) < num_cells)
            if num_second >= MIN_SECOND:
                hints = [SECOND_HINT.format(line=line, width=width)]
            line = rejected.wrong[0][0]
            problems.unreadable(location, message, " ".join(hints), skip=skip, line=line, num_samples=num)
        if num := rejected.num_unreadable:
            line, text = rejected.unreadable
            lines = "1 line" if num == 1 else f"{num:,} lines"
            message = f"the quotes of {lines} cannot be read: {quoted(text)}."
            problems.unreadable(location, message, QUOTE_HINT, skip=skip, line=line, num_samples=num)
        if rejected.open_row[0]:
            line, num = rejected.open_row
            message = f"a quote that opens here is never closed: {num:,} lines from here on are one cell."
            problems.unreadable(location, message, QUOTE_HINT, skip=skip, line=line, num_samples=num)

    # ---- Parquet and JSON

    def _read_columns(self, suffix: str, problems: Problems) -> None:
        is_json = suffix in JSON_SUFFIXES
        source = self._source(suffix, problems)
        layout = "auto" if suffix == ".json" else "newline_delimited"
        scan = f"read_parquet({source})"
        if is_json:
            scan = (
                f"read_json({source}, format = '{layout}', records = 'true', maximum_depth = 1, "
                f"sample_size = -1, "
                f"maximum_object_size = {MAX_ROW_BYTES})"
            )
        try:
            described = self.query(f"DESCRIBE SELECT * FROM {scan}")
            if suffix == ".json" and (inner := self._list_in_object(problems)):
                scan = scan.replace(source, literal(inner))
                described = self.query(f"DESCRIBE SELECT * FROM {scan}")
        except self._duckdb.BinderException as error:
            if "non-record" not in str(error):
                raise
            raise ReadingError("its rows are lists or single values, not objects.", JSON_HINT) from error
        _check_described(described)
        quoted_names = ['"' + str(name).replace('"', '""') + '"' for name, *_ in described]
        is_nested = [
            kind != "BLOB" and (kind.startswith(NESTED) or kind.endswith("]")) for _, kind, *_ in described
        ]
        if is_json:
            tests = [f"bool_or(json_type({name}) IN ('OBJECT', 'ARRAY'))" for name in quoted_names]
            is_nested = list(self.query_wide(tests, f"FROM {scan}")[0])
        indexes = set() if is_json else self._pandas_index(source)
        cells: list[tuple[str, str]] = []  # names and SQL
        is_needed = is_nested.count(False) < 2
        for (name, kind, *_), quoted_name, has_parts in zip(described, quoted_names, is_nested, strict=True):
            if name in indexes:
                self.index_columns.add(len(cells))
            if not has_parts:
                text = f"{quoted_name} ->> '$'" if is_json else f"CAST({quoted_name} AS VARCHAR)"
                text = (
                    f"TRY(decode({quoted_name}))" if kind == "BLOB" else text
                )  # as some programs write texts
                cells.append((str(name), text))
            elif is_needed and not re.search(r"\bBLOB\b", kind):
                value = quoted_name if is_json else f"to_json({quoted_name})"
                self._add_values([(str(name), value)], cells, scan, problems)
            else:
                problems.note(f"column {quoted(name)}", NESTED_CELLS)
        names = [name for name, _ in cells]
        _check_columns(names, is_json=is_json)
        self._create([sql for _, sql in cells], scan)
        self.names = column_names(names, len(names))

    def _source(self, suffix: str, problems: Problems) -> str:
        """Return the path that DuckDB may open, as an SQL literal; JSON in another encoding is copied."""
        link = self._place / f"source{suffix}"
        with self.path.open("rb") as opened:
            start = opened.read(4)
        if suffix in JSON_SUFFIXES and (b"\0" in start or not start.isascii()):
            encoding = reading.find_encoding(self.path)
            with link.open("w", encoding="utf-8") as file:
                file.writelines(reading.text_chunks(self.path, encoding))
            if encoding.note:
                problems.note(self.path.name, encoding.note)
        else:
            link.symlink_to(self.path.absolute())
        return literal(str(link))

    def _add_values(
        self,
        values: list[tuple[str, str]],
        cells: list[tuple[str, str]],
        scan: str,
        problems: Problems,
        depth: int = 0,
    ) -> None:
        """Add values to the cells, those in objects with names such as data.text; lists of one value are it.

        Args:
            values, cells: names and SQL.
        """
        kind = "json_type({0})"
        tests = [f"list(DISTINCT {kind}) FILTER ({kind} != 'NULL')", "max(json_array_length({0}))"]
        expressions = [test.format(value) for _, value in values for test in tests]
        (answers,) = self.query_wide(expressions, f"FROM {scan}")
        for (name, value), kinds, longest in zip(values, answers[::2], answers[1::2], strict=True):
            inner = []
            if not {"OBJECT", "ARRAY"}.intersection(kinds or ()):
                cells.append((name, f"{value} ->> '$'"))
                if len(cells) > MAX_COLUMNS:
                    raise _too_many_columns(f"more than {MAX_COLUMNS:,}")
                continue
            if kinds == ["ARRAY"] and longest == 1 and depth < MAX_NESTED:
                inner = [(name, f"json_extract({value}, '/0')")]
            if kinds == ["OBJECT"] and depth < MAX_NESTED:
                inner = self._in_object(name, value, scan)
            if not inner or len(inner) > MAX_KEYS:
                problems.note(f"column {quoted(name)}", NESTED_CELLS)
            else:
                self._add_values(inner, cells, scan, problems, depth + 1)

    def _in_object(self, name: str, value: str, scan: str) -> list[tuple[str, str]]:
        """Return the names and SQL of the values in an object, at most one more than `MAX_KEYS`."""
        all_keys = f"json_keys({value})"
        keys = self.query(
            f"SELECT k FROM (SELECT unnest({all_keys}) AS k, generate_subscripts({all_keys}, 1) AS i "
            f"FROM {scan}) GROUP BY k ORDER BY min(i), k LIMIT {MAX_KEYS + 1}"
        )
        paths = [literal("/" + key.replace("~", "~0").replace("/", "~1")) for (key,) in keys]
        return [
            (f"{name}.{key}", f"json_extract({value}, {path})")
            for (key,), path in zip(keys, paths, strict=True)
        ]

    def _list_in_object(self, problems: Problems) -> str:
        """Write the rows in a single JSON object as a list; return the path, or "" if it is another JSON."""
        if self.path.stat().st_size > MAX_ROW_BYTES:
            return ""
        try:
            document = json.loads((self._place / "source.json").read_text("utf-8"))
        except (ValueError, RecursionError):
            return ""
        rows, note = _rows_of_object(document) if isinstance(document, dict) else ([], "")
        if not rows:
            return ""
        if note:
            problems.note(self.path.name, note)
        path = self._place / "list.json"
        path.write_text(json.dumps(rows), "utf-8")
        return str(path)

    def _pandas_index(self, source: str) -> set[str]:
        """Return the columns that pandas has written as the row index."""
        for key, value in self.query(f"SELECT key, value FROM parquet_kv_metadata({source})"):
            if bytes(key) == b"pandas":
                index_columns = json.loads(bytes(value)).get("index_columns", [])
                return {name for name in index_columns if isinstance(name, str)}
        return set()


def _too_many_columns(num: str, line: int | None = None) -> ReadingError:
    message = f"there are {num} columns; {MAX_COLUMNS:,} are the most."
    return ReadingError(message, "Leave out the columns that are not needed.", line)


def _check_described(described: list[Row]) -> None:
    if len(described) > MAX_COLUMNS:
        raise _too_many_columns(f"{len(described):,}")
    images = [str(name) for name, kind, *_ in described if "bytes BLOB" in kind]
    if images and len(described) <= MANY_BESIDE_IMAGES:
        message = f"its column {quoted(images[0])} holds images, which are not read from such a file."
        raise ReadingError(message, "Save them as files, in a folder for each class.")


def _check_columns(names: Sequence[str], *, is_json: bool) -> None:
    if is_json and not names:
        raise ReadingError("it holds lists or objects, not rows of cells.", JSON_HINT)
    if len(names) < 2:
        message = f"there is one column only, {quoted(*names)}." if names else "there is no column."
        raise ReadingError(message, "At least two columns are needed.")


def _rows_of_object(document: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Return the rows in a JSON object, as pandas writes them or in its only list, and a note on the list."""
    values = list(document.values())
    if isinstance(document.get("columns"), list) and isinstance(data := document.get("data"), list):
        names = list(map(str, document["columns"]))
        return [dict(zip(names, row, strict=False)) for row in data if isinstance(row, list)], ""
    if values and all(isinstance(each, dict) and each.keys() == values[0].keys() for each in values):
        # pandas numbers rows; if neither or both sides have numbers, there are more rows than columns.
        is_numbered, has_numbers = (all(map(str.isdecimal, keys)) for keys in (document, values[0]))
        if is_numbered if is_numbered != has_numbers else len(values) > len(values[0]):
            return values, ""
        return [{name: cells[key] for name, cells in document.items()} for key in values[0]], ""
    lists = {name: each for name, each in document.items() if isinstance(each, list) and each}
    tables = [name for name, cells in lists.items() if isinstance(cells[0], dict)]
    if len(tables) == 1:
        return lists[tables[0]], f"the list {quoted(tables[0])} in it is read."
    inner = [each for each in values if isinstance(each, dict)]
    if len(inner) == 1 and not lists:
        return _rows_of_object(inner[0])
    if len(lists) == len(values) > 1 and len({len(cells) for cells in values}) == 1 and not tables:
        return [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)], ""
    return [], ""


def _transposed(text: Path, dialect: Dialect) -> str:
    """Swap rows and columns of a text; return it as CSV."""
    if text.stat().st_size > MAX_ROW_BYTES:
        message = f"it is larger than {MAX_ROW_BYTES // 2**20} MB."
        raise ReadingError(f"rows and columns cannot be swapped: {message}", "Swap them before.")
    with text.open(encoding="utf-8", errors="surrogatepass", newline="") as file:
        rows = [row for row in dialect.reader(file) if len(row) == dialect.num_cells]
    with text.open("w", encoding="utf-8", errors="surrogatepass", newline="") as to:
        csv.writer(to, lineterminator="\n").writerows(zip(*rows, strict=True))
    return text.read_text("utf-8", errors="surrogatepass")


def _write_rows(text: Path, dialect: Dialect, *, has_formulas: bool) -> Rejected:
    """Write the rows of a text into the file `ROWS` next to it, as line number and cells; return the others.

    Args:
        has_formulas: True if some cells are formulas such as ="00123", whose value is read.
    """
    rejected = Rejected()
    csv.field_size_limit(2**31 - 1)  # `_RowLines` has a limit
    with (
        text.open(encoding="utf-8", errors="surrogatepass", newline="") as file,
        text.with_name(ROWS).open("w", encoding="utf-8", errors="replace", newline="") as to,
    ):
        for _ in range(dialect.num_above):
            file.readline()
        lines = _RowLines(file)
        reader = dialect.reader(lines, is_strict=True)
        writer = csv.writer(to, lineterminator="\n")
        line = dialect.num_above + 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                break
            except (csv.Error, _EndlessRowError) as error:
                if isinstance(error, _EndlessRowError) or "end of data" in str(error):
                    rejected.open_row = line, lines.num_left()
                    break
                rejected.unreadable = rejected.unreadable if rejected.num_unreadable else (line, lines.start)
                rejected.num_unreadable += lines.num_lines
                cells = []
            if has_formulas:
                cells = [cell[2:-1] if cell.startswith('="') and cell[-1:] == '"' else cell for cell in cells]
            if not (dialect.comment and lines.start.startswith(dialect.comment)):
                _write_row(writer, line, cells, dialect, rejected)
            line += lines.end_row()
    text.unlink()
    return rejected


def _write_row(writer: Any, line: int, cells: list[str], dialect: Dialect, rejected: Rejected) -> None:
    if dialect.may_end_empty and len(cells) == dialect.num_cells + 1 and not cells[-1]:
        cells = cells[:-1]
    names = dialect.names
    if cells and names and cells[0].strip() == names[0] and tuple(map(str.strip, cells)) == names:
        rejected.num_names += 1
    elif len(cells) == dialect.num_cells and not all(map(_RULE.fullmatch, cells)):
        rejected.are_rows()
        rejected.second = (0, 0, 0)
        writer.writerow([line, *cells])
    elif not all(map(_RULE.fullmatch, cells)):
        rejected.add(line, cells)


def _write_sheet(path: Path, requested: str, to: Path, problems: Problems) -> None:
    """Write one sheet of a spreadsheet as CSV."""
    try:
        calamine = importlib.import_module("python_calamine")
    except ImportError as error:
        raise NotInstalledError(f"Spreadsheets need python-calamine ({error}).") from error
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                size = sum(info.file_size for info in archive.infolist())
            if size > MAX_SHEET_BYTES:
                message = f"the spreadsheet is {size / 2**20:,.0f} MB unpacked; "
                message += f"{MAX_SHEET_BYTES // 2**20} are the most."
                raise ReadingError(message, "Save the sheet as CSV.")
        workbook = calamine.CalamineWorkbook.from_path(str(path))
        names = workbook.sheet_names
        if requested and requested not in names:
            raise ReadingError(
                f"there is no sheet {quoted(requested)}.", f"The sheets are: {listed(names, 20)}."
            )
        sheets = map(workbook.get_sheet_by_name, [requested] if requested else names)
        sheet = next((each for each in sheets if each.height), None)
        sheet = sheet or workbook.get_sheet_by_name(requested or names[0])
        rows = sheet.to_python(skip_empty_area=True)
        if num := _fill_merged(rows, sheet):
            problems.note(path.name, f"{num:,} cells are merged with others; they are read with their value.")
        _note_hidden(path, names.index(sheet.name), problems)
    except (calamine.CalamineError, OSError, zipfile.BadZipFile, ValueError, IndexError) as error:
        if isinstance(error, ReadingError):
            raise
        raise ReadingError(f"the spreadsheet cannot be read ({_short(error)}).", AGAIN_HINT) from error
    if len(names) > 1:
        others = [name for name in names if name != sheet.name]
        message = f"the sheet {quoted(sheet.name)} is read; "
        message += f"there are also {listed(list(map(quoted, others)), 5)}."
        suggested = {"data_reading": json.dumps({"sheet": others[0]})}
        problems.note(path.name, message, suggested=suggested)
    with to.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)


def _fill_merged(rows: list[list[Any]], sheet: Any) -> int:
    """Fill cells that are merged with one above them; return their number."""
    top, left = sheet.start or (0, 0)
    num = 0
    for (first, start), (last, end) in sheet.merged_cell_ranges or ():
        processes.check_time()
        if not (top <= first < top + len(rows) and left <= start):
            continue
        value = rows[first - top][start - left : end + 1 - left]
        for row in rows[first + 1 - top : last + 1 - top]:
            row[start - left : end + 1 - left] = value
            num += len(value)
    return num


def _note_hidden(path: Path, index: int, problems: Problems) -> None:
    """Report hidden rows, which are read, and formulas without values, which are not."""
    name = f"xl/worksheets/sheet{index + 1}.xml"
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        sheet = archive.read(name) if name in archive.namelist() else b""
    if num := len(re.findall(rb'<row [^>]*hidden="(?:1|true)"', sheet)):
        problems.note(path.name, f"{num:,} rows of the sheet are hidden; they are read like the others.")
    # The result of a formula with t="str" may be an empty text.
    empty = rb'<c(?=[ >])(?![^>]* t="str")[^>]*><f[^>]*>[^<]*</f>(?:<v></v>|<v ?/>)?</c>'
    if num := len(re.findall(empty, sheet)):
        message = f"{num:,} formulas have no value and are empty cells."
        problems.note(path.name, message, "Open it in a spreadsheet program and save it.")


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def parts_of(items: Sequence[Any], size: int = EXPRESSIONS_AT_ONCE) -> Iterator[Sequence[Any]]:
    """Yield consecutive parts of a sequence."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _short(error: Exception) -> str:
    return " ".join(re.sub(r' in file "[^"]*"', "", str(error).split("\n")[0]).split())[:200]
