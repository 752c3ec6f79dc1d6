"""A faulty row of a table, as in the Pollock benchmark, is reported by line, and the other rows are read."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.own_files import own_cache  # noqa: F401 - a fixture
from trainers.data.own.problems import Problems
from trainers.data.own.table_file import Table

# Each text has two commas. With only one, a missing delimiter before the text would leave a valid row of five
# cells.
ROWS = [
    ["date", "price", "name", "text", "kind"],
    *(
        [f"2018-01-{n:02}", f"{n}.5", f"boot {n}", f"warm, dry, and {n}″ high", "ab"[n % 2]]
        for n in range(1, 31)
    ),
]
POLLUTED = (2, 15, 30)  # rows at the first, a middle and the last line


def _line(cells: list[str], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", delimiter=delimiter).writerow(cells)
    return text.getvalue()


def _cells(cells: list[str]) -> list[str]:
    """Return the cells in CSV notation."""
    return [_line([cell, ""]).rstrip("\n")[:-1] for cell in cells]


def _extra_quote(cells: list[str]) -> Iterator[str]:
    written = _cells(cells)
    for place in range(len(written)):
        yield ",".join([*written[:place], '"' + written[place], *written[place + 1 :]]) + "\n"


def _extra_delimiter(cells: list[str]) -> Iterator[str]:
    written = _cells(cells)
    for place in range(len(written)):
        yield ",".join([*written[:place], "," + written[place], *written[place + 1 :]]) + "\n"


def _missing_delimiter(cells: list[str]) -> Iterator[str]:
    written = _cells(cells)
    for place in range(len(written) - 1):
        yield ",".join(written[: place + 1]) + ",".join(written[place + 1 :]) + "\n"


def _other_delimiter(cells: list[str]) -> Iterator[str]:
    yield from (_line(cells, delimiter) for delimiter in " ;\t")


@pytest.mark.parametrize("pollute", [_extra_quote, _extra_delimiter, _missing_delimiter, _other_delimiter])
def test_row_with_a_fault_is_named_and_the_others_are_read(
    tmp_path: Path, pollute: Callable[[list[str]], Iterator[str]]
) -> None:
    path = tmp_path / "t.csv"
    tried = 0
    for number in POLLUTED:
        for polluted in pollute(ROWS[number - 1]):
            tried += 1
            lines = [_line(cells) for cells in ROWS]
            lines[number - 1] = polluted
            path.write_text("".join(lines), "utf-8")
            problems = Problems()
            table = Table(path, {}, skip_unreadable=True, problems=problems)
            found = [list(row) for row in table.query("SELECT * EXCLUDE (row) FROM rows ORDER BY row")]
            assert table.names == ROWS[0], polluted
            assert all(row in ROWS for row in found), polluted
            # An unclosed quote at the end of a line also consumes the next line.
            assert len(found) >= len(ROWS) - 3, polluted
            named = {problem.line for problem in problems.shown}
            assert number in named or len(found) == len(ROWS) - 1, (polluted, problems.shown)
    assert tried >= 9


def test_record_delimiters_and_dialects_of_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for delimiter, quote, end in itertools.product(",;\t|", "\"'", ("\n", "\r\n", "\r")):
        text = io.StringIO()
        csv.writer(text, delimiter=delimiter, quotechar=quote, lineterminator=end).writerows(
            [*row, f"a{delimiter}b"] for row in ROWS
        )
        path.write_text(text.getvalue(), "utf-8", newline="")
        table = Table(path, {}, skip_unreadable=False, problems=Problems())
        found = table.query("SELECT * EXCLUDE (row) FROM rows ORDER BY row")
        assert [list(row[:5]) for row in found] == ROWS[1:], (delimiter, quote, end)
