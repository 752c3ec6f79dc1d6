"""Finds how a text file is written as a table: delimiter, quotes, lines above the table, column names."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

DELIMITERS = ("\t", ";", "|", ",")  # in this order where several fit
RARE_DELIMITERS = ("^", "~", "\x01", ":", " ")  # only where none of the others fits
NAMES = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas", " ": "spaces"}
LINES, MIN_LINES = 1000, 30
MAX_CHARACTERS = 2**20  # of the lines of a wide table
FITS = 0.8
COMMENTS = ("#", "%", "//")
MAX_COLUMN_NAME = 200
LIKE_A_NUMBER = re.compile(r"[^\w\s]{0,2}\s?\d[\d.,'’ \u00a0\u202f]*([eE][+-]?\d+)?\s?(%|[^\W\d]{1,3})?")

Row = tuple[int, list[str]]  # the line it starts in, from 0, and its cells


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How lines become rows of cells.

    Attributes:
        num_above: lines above the first row of data.
        num_cells: cells in a row.
        names: at most one for each cell; None without a header.
        share: of the lines looked at that have this number of cells.
        notes: what a user should know, as sentences.
    """

    delimiter: str
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    ignores_space: bool = False
    num_above: int = 0
    num_cells: int = 0
    names: tuple[str, ...] | None = None
    share: float = 0.0
    notes: tuple[str, ...] = ()

    def reader(self, lines: Any) -> Any:
        """Return a `csv.reader` of this dialect."""
        is_doubled = self.escape == self.quote
        if self.delimiter == " ":  # any number of spaces is one delimiter
            lines = (" ".join(line.split()) + "\n" for line in lines)
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            doublequote=is_doubled,
            escapechar=None if is_doubled else self.escape or None,
            skipinitialspace=self.ignores_space,
        )


def find_dialect(text: str, *, delimiter: str = "", has_header: bool | None = None) -> Dialect | None:
    """Return how the first lines of a text are written as a table, or None if they have one cell each.

    Args:
        delimiter, has_header: what is known already.
    """
    lines = text.split("\n")[:LINES]
    lines = lines[: max(MIN_LINES, MAX_CHARACTERS // (len(lines[0]) + 1))]
    first = 0
    if declared := re.fullmatch(r'"?sep=(.)"?', lines[0], flags=re.IGNORECASE):  # written for Excel
        delimiter, first = delimiter or declared[1], 1
    quote = (
        "'"
        if '"' not in text and len(re.findall(r"(?:^|[\t;|,])'[^'\n]*'(?=[\t;|,]|$)", text, re.M)) > 4
        else '"'
    )
    escape = "\\" if re.search(r'[^\\]\\"', text) and '""' not in text else quote
    csv.field_size_limit(2**27)
    found: list[tuple[Dialect, list[Row]]] = []
    for group in ([delimiter],) if delimiter else (DELIMITERS, RARE_DELIMITERS):
        found += [each for one in group if (each := _rows(one, quote, escape, lines, first)) is not None]
        if found and max(dialect.share for dialect, _ in found) >= FITS:
            break
    if not found:
        return None
    best = max(dialect.share for dialect, _ in found)
    close = [each for each in found if each[0].share > best - 0.1]
    dialect, rows = max(close, key=lambda each: _share_of_numbers(*each))
    return _with_header(dialect, rows, has_header)


def column_names(names: Sequence[str], num_cells: int) -> list[str]:
    """Return a name for each cell: short, on one line, and not used twice."""
    found: dict[str, None] = {}
    for number, name in enumerate([*names, *[""] * (num_cells - len(names))], start=1):
        name = " ".join(name.split()).strip("\ufeff\u200b") or f"column {number}"
        name = name if len(name) <= MAX_COLUMN_NAME else name[: MAX_COLUMN_NAME - 1] + "…"
        again = 2
        while name in found:
            name = f"{name.removesuffix(f' ({again - 1})')} ({again})"
            again += 1
        found[name] = None
    return list(found)


def _rows(
    delimiter: str, quote: str, escape: str, lines: list[str], first: int
) -> tuple[Dialect, list[Row]] | None:
    pattern = f"{re.escape(delimiter)} +{quote}"
    ignores_space = delimiter == " " or any(re.search(pattern, line) for line in lines[:50])
    dialect = Dialect(delimiter=delimiter, quote=quote, escape=escape, ignores_space=ignores_space)
    rows: list[Row] = []
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
    if len(rows) > 2 and len(rows[-1][1]) != len(rows[-2][1]):
        del rows[-1]  # the text may end within it
    widths = Counter(len(cells) for _, cells in rows if len(cells) > 1)
    if not widths:
        return None
    width = max(widths, key=lambda width: (widths[width], width))
    return replace(dialect, num_cells=width, share=widths[width] / len(rows)), rows


def _share_of_numbers(dialect: Dialect, rows: list[Row]) -> float:
    cells = [cell for _, row in rows if len(row) == dialect.num_cells for cell in row]
    return round(sum(LIKE_A_NUMBER.fullmatch(cell) is not None for cell in cells) / len(cells), 1)


def _with_header(dialect: Dialect, rows: list[Row], has_header: bool | None) -> Dialect:
    width = dialect.num_cells
    at = next(place for place, (_, cells) in enumerate(rows) if len(cells) == width)
    whole = [cells for _, cells in rows if len(cells) == width]
    groups: list[str] = []
    if len(whole) > 2 and width > 2 and _is_above_header(whole):
        groups = [next(filter(None, reversed(whole[0][: place + 1])), "") for place in range(width)]
        whole, at = whole[1:], at + 1
    notes: list[str] = []
    above = [cells for _, cells in rows[:at] if not cells[0].startswith(COMMENTS)]
    names: list[str] | None = None
    if has_header or (has_header is None and _is_header(whole[0], whole[1:])):
        names, at = whole[0], at + 1
        if groups and len(set(names)) < width:
            names = [f"{group} {name}".strip() for group, name in zip(groups, names, strict=True)]
    elif above and has_header is None:
        names = _names_above(above, whole, notes)
    if names is None:
        notes.append("there is no line with column names: the columns are numbered.")
    elif _is_second_header(names, [cells for _, cells in rows[at:] if len(cells) == width]):
        notes.append(f"the line below the column names, {', '.join(rows[at][1])[:60]}, is left out.")
        at += 1
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
        names=None if names is None else tuple(names),
        comment=comment,
        notes=tuple(notes),
    )


def _is_above_header(rows: list[list[str]]) -> bool:
    """Return True if the first row is a title with empty cells, or names of groups of columns."""
    first, second, *rest = rows
    num_filled = sum(map(bool, first))
    is_title = num_filled == 1 and _is_header(second, rest)
    return 0 < num_filled < len(first) and all(second) and (is_title or _is_second_header(first, rows[1:]))


def _names_above(above: list[list[str]], rows: list[list[str]], notes: list[str]) -> list[str] | None:
    """Return the column names of a header with fewer or more cells than the rows, or None."""
    num_names, width = len(above[-1]), len(rows[0])
    if num_names == width - 1 and not any(row[-1] for row in rows):
        return [*above.pop(), ""]  # every row ends in a delimiter
    if num_names == width - 1 and _are_different(rows):
        notes.append(
            "the first line has one name less than the rows have cells: the first column is row names."
        )
        return ["row name", *above.pop()]
    if num_names > width and not any(above[-1][width:]):
        return above.pop()[:width]
    if 1 < num_names < width:
        shown = ", ".join(above[-1])[:60]
        notes.append(
            f"the line {shown} has {num_names} cells and the rows have {width}: quote cells that contain the "
            "delimiter, such as numbers with a decimal comma."
        )
    return None


def _is_header(first: list[str], rest: list[list[str]]) -> bool:
    """Return True if a row is rather names of columns than data like the rows below it."""
    numbers = [cell for cell in first if LIKE_A_NUMBER.fullmatch(cell)]
    counted = [int(cell) for cell in numbers if cell.isascii() and cell.isdigit()]
    steps = {after - before for before, after in itertools.pairwise(counted)}
    is_counted = len(counted) == len(numbers) and len(counted) > 1 and len(steps) == 1 and steps != {0}
    score = 0.0
    for place, cell in enumerate(first):
        below = [row[place] for row in rest if row[place]]
        is_number = sum(LIKE_A_NUMBER.fullmatch(each) is not None for each in below) > 0.7 * len(below)
        if below and is_number:
            # Names that count (0, 1, 2, ... or years) are numbers, too.
            score += 0 if is_counted and cell in numbers else -1 if cell in numbers else bool(cell)
        elif cell and below.count(cell) > 0:
            score -= 1
        elif below and len(set(below)) <= 0.5 * len(below):
            score += 0.5
    if score == 0:
        return is_counted or (all(len(cell) < 60 for cell in first) and len(set(first)) == len(first))
    return score > 0


def _are_different(rows: list[list[str]]) -> bool:
    """Return True if the first cells can be names of rows, and not the parts before a decimal comma."""
    is_decimal = all(re.fullmatch(r"-?\d{1,4}", row[0]) and re.fullmatch(r"\d{1,2}", row[1]) for row in rows)
    is_counted = [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    return len({row[0] for row in rows}) == len(rows) and (is_counted or not is_decimal)


def _is_second_header(names: list[str], rows: list[list[str]]) -> bool:
    """Return True if the first row is not data: no number in it, where nearly all others have one."""
    if len(rows) < 10:
        return False
    first, *rest = rows
    found = [
        place
        for place in range(len(names))
        if sum(LIKE_A_NUMBER.fullmatch(row[place]) is not None for row in rest) > 0.9 * len(rest)
    ]
    is_other = [first[place] and not re.search(r"\d", first[place]) for place in found]
    return len(found) > 1 and all(is_other)
