"""Rows of a CSV, TSV or Parquet file as texts, some thousand at a time, each with its line."""

from __future__ import annotations

import csv
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from trainers.data.dataset import NotInstalledError
from trainers.data.own.common import reading
from trainers.data.own.common.problems import Problems, quoted
from trainers.data.own.common.reading import ReadingError

ROWS_AT_ONCE = 4096
CELLS_AT_ONCE = 400_000
CHARACTERS_AT_ONCE = 16 * 2**20
MAX_COLUMNS = 10_000
MAX_COLUMN_NAME = 200
MAX_CELL_CHARACTERS = 2**20
DELIMITERS = (",", ";", "\t", "|")
TAB_SUFFIXES = (".tsv", ".tab")
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (".csv", *TAB_SUFFIXES, *PARQUET_SUFFIXES)
QUOTE_HINT = 'Put texts that have a delimiter or line end into quotes, and double a quote within: "".'

# The lines of some rows and the cells of each.
Chunk = tuple[list[int], list[list[str]]]


class Table(Protocol):
    """A table that can be gone through again and again."""

    header: list[str]
    decimal_comma: bool

    def chunks(self, problems: Problems | None) -> Iterator[Chunk]:
        """Yield all whole rows; faults are added to `problems`, or passed over where it is None."""
        ...


def open_table(path: Path, *, skip_unreadable: bool, problems: Problems) -> Table:
    """Open a table by its name's ending."""
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return ParquetTable(path, problems)
    return CsvTable(path, skip_unreadable=skip_unreadable, problems=problems)


class CsvTable:
    """Text with one row a line, cells between delimiters, and column names in the first line."""

    def __init__(self, path: Path, *, skip_unreadable: bool, problems: Problems) -> None:
        self._path = path
        self._skip = skip_unreadable
        self.header: list[str] = []
        self.decimal_comma = False
        self._delimiter = ","
        try:
            self._delimiter = "\t" if path.suffix.lower() in TAB_SUFFIXES else _find_delimiter(path)
            self.header = next((row for _, row in self._rows(None) if row), [])
        except ReadingError as error:
            problems.fault(path.name, error.message, error.hint, line=error.line)
            return
        # Where commas do not part cells they can be in numbers: 3,14 as in many countries of Europe.
        self.decimal_comma = self._delimiter == ";"
        if not self.header:
            problems.fault(
                path.name, "the file is empty.", "Give a table with column names in its first line."
            )
        elif len(self.header) == 1:
            message = f"there is one column only, {quoted(self.header[0])}."
            hint = "Cells are parted by a comma, semicolon, tab or bar; two columns are the least."
            problems.fault(path.name, message, hint, line=1)
        else:
            self.header = check_header(self.header, path.name, problems)

    def chunks(self, problems: Problems | None) -> Iterator[Chunk]:
        """Yield all whole rows."""
        num_columns = len(self.header)
        size = max(16, min(ROWS_AT_ONCE, CELLS_AT_ONCE // max(1, num_columns)))
        lines: list[int] = []
        rows: list[list[str]] = []
        num_characters = 0
        is_header = True
        try:
            for line, row in self._rows(problems):
                if not row:
                    continue
                if is_header:
                    is_header = False
                elif len(row) == num_columns:
                    lines.append(line)
                    rows.append(row)
                    num_characters += sum(map(len, row))
                    if len(rows) == size or num_characters > CHARACTERS_AT_ONCE:
                        yield lines, rows
                        lines, rows, num_characters = [], [], 0
                elif problems is not None:
                    message = f"the row has {len(row)} cells; the header has {num_columns}."
                    problems.unreadable(self._path.name, message, QUOTE_HINT, skip=self._skip, line=line)
        except ReadingError as error:
            if problems is None:
                raise
            problems.fault(self._path.name, error.message, error.hint, line=error.line)
        if rows:
            yield lines, rows

    def _rows(self, problems: Problems | None) -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the line it starts in."""
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        row_size = _RowSize(reading.text_lines(self._path))
        reader = csv.reader(row_size, delimiter=self._delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            row_size.begin(line)
            try:
                yield line, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                message = _quote_fault(str(error))
                if "limit" in str(error) or "end of data" in str(error):
                    # All that follows was taken for one cell: going on makes no sense.
                    raise ReadingError(message, QUOTE_HINT, line) from error
                if "new-line" in str(error) and line == 1:
                    message = "its lines end in a carriage return alone (CR), as on a very old Mac."
                    raise ReadingError(message, "Save it anew, with line feeds (LF).", line) from error
                if problems is not None:
                    problems.unreadable(self._path.name, message, QUOTE_HINT, skip=self._skip, line=line)


class _RowSize:
    """Hands on the lines of a row while they are not too many: quotes may hold a row together for ever."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._line = 1
        self._num_characters = 0

    def begin(self, line: int) -> None:
        """Count anew: a row begins in this line."""
        self._line = line
        self._num_characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = next(self._lines)
        self._num_characters += len(text)
        if self._num_characters > reading.MAX_LINE_BYTES:
            message = f"the row that starts here is longer than {reading.MAX_LINE_BYTES // 2**20} MB."
            raise ReadingError(message, QUOTE_HINT, self._line)
        return text


class ParquetTable:
    """A Parquet file, read by pyarrow where that is installed; "lines" are row numbers from 1."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.header: list[str] = []
        self.decimal_comma = False
        pyarrow = _pyarrow()
        self._name = path.name
        self._broken = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
            schema = self._file.schema_arrow
        except self._broken as error:
            self._tell(error, problems)
            return
        if len(schema) > MAX_COLUMNS:
            self.header = check_header(list(schema.names), path.name, problems)
            return
        for field in schema:
            if pyarrow.types.is_nested(field.type) or pyarrow.types.is_binary(field.type):
                hint = "Only numbers, texts, dates and truth values are taken: leave the column out."
                problems.fault(f"column {quoted(field.name)}", f"its cells are {field.type}.", hint)
        if len(schema) < 2:
            problems.fault(path.name, f"there are {len(schema)} columns.", "Two columns are the least.")
        self.header = check_header(list(schema.names), path.name, problems)

    def chunks(self, problems: Problems | None) -> Iterator[Chunk]:
        """Yield all rows."""
        line = 1
        size = max(16, min(ROWS_AT_ONCE, CELLS_AT_ONCE // max(1, len(self.header))))
        batches = self._file.iter_batches(batch_size=size)
        while True:
            try:
                batch = next(batches)
                columns = [[_as_text(value) for value in column.to_pylist()] for column in batch.columns]
            except StopIteration:
                return
            except self._broken as error:
                if problems is None:
                    raise
                self._tell(error, problems)
                return
            rows = [list(row) for row in zip(*columns, strict=True)]
            yield list(range(line, line + len(rows))), rows
            line += len(rows)

    def _tell(self, error: Exception, problems: Problems) -> None:
        hint = "It may be cut off: write or copy it again."
        problems.fault(self._name, f"the Parquet file cannot be read ({str(error)[:200]}).", hint)


def check_header(header: list[str], where: str, problems: Problems) -> list[str]:
    """Return the columns' names; nameless ones get one."""
    if len(header) > MAX_COLUMNS:
        message = f"there are {len(header):,} columns; {MAX_COLUMNS:,} are the most."
        problems.fault(where, message, "Leave out the columns that are not needed.", line=1)
        return []
    names = [name.strip() for name in header]
    for number, name in enumerate(names, start=1):
        if not name:
            names[number - 1] = f"column {number}"
            problems.note(where, f"column {number} has no name.", f"It is called column {number}.", line=1)
    for name, count in Counter(names).items():
        if len(name) > MAX_COLUMN_NAME:
            message = f"the column's name is {len(name):,} characters long; {MAX_COLUMN_NAME} are the most."
            problems.fault(f"column {quoted(name)}", message, f"Give it a shorter one. {QUOTE_HINT}", line=1)
        if count > 1:
            message = f"{count} columns are called {quoted(name)}."
            problems.fault(where, message, "Give each column a name of its own.", line=1)
    numbers = [name for name in names if len(name) <= MAX_COLUMN_NAME and _is_number(name)]
    counted = [str(number) for number in range(len(names))], [str(number + 1) for number in range(len(names))]
    if len(numbers) * 2 >= len(names) and names not in counted:
        message = f"the first line looks like data, not like column names: {quoted(', '.join(names))}."
        problems.fault(where, message, "Put a line with a name for each column before it.", line=1)
    return names


def _find_delimiter(path: Path) -> str:
    """Return the delimiter that cuts the first rows into the most cells, all into as many."""
    sample = []
    for line in reading.text_lines(path):
        sample.append(line)
        if len(sample) == 50:
            break
    best, most = ",", 0.0
    for delimiter in DELIMITERS:
        try:
            lengths = [len(row) for row in csv.reader(sample, delimiter=delimiter) if row]
        except csv.Error:
            continue
        if not lengths or lengths[0] < 2:
            continue
        score = lengths.count(lengths[0]) / len(lengths) + lengths[0] * 1e-4
        if score > most:
            best, most = delimiter, score
    return best


def _quote_fault(message: str) -> str:
    if "limit" in message:
        return "a cell that starts here is longer than a million characters: a quote seems not to be closed."
    if "end of data" in message:
        return "a quote that opens here is never closed."
    return f"the quotes in this row cannot be read ({message})."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pyarrow() -> Any:
    try:
        pyarrow = importlib.import_module("pyarrow")
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise NotInstalledError(
            f"Parquet needs pyarrow, which cannot be used here ({error}): pip install pyarrow. Or save the "
            "table as CSV."
        ) from error
    return pyarrow
