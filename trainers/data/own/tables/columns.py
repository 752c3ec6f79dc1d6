"""What is in each column of a table: numbers, categories, texts, or names of rows; told in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NUMBER = "number"
CATEGORY = "category"
TEXT = "text"
IDENTIFIER = "identifier"
MIXED = "mixed"
CONSTANT = "constant"
EMPTY = "empty"

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
MAX_COUNTED = 20_000  # different values of a column
MAX_COUNTED_IN_ALL = 1_000_000
MAX_CHARACTERS_COUNTED_IN_ALL = 200_000_000
LONG_VALUE = 50
MIN_TEXT_WORDS = 4.0
MIXED_FROM = 0.8  # this share of numbers: the rest are probably mistakes
MIN_FOR_IDENTIFIER = 10
NUM_EXAMPLES = 5
# A model computes with numbers of 32 bits, which end at 3.4e38.
LARGEST_NUMBER = 1e38
# Nor can it tell numbers apart that differ by less than this, or by so small a share of their size.
SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)
SMALLEST_SHARE = 2.0**-44
ID_NAMES = ("id", "ids", "index", "uuid", "guid", "key", "row")

Numbers = npt.NDArray[np.float64]


class Column:
    """Counts the values of one column."""

    def __init__(self, name: str, num_columns: int, *, decimal_comma: bool) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.missing_lines: list[int] = []
        self.not_numbers: list[tuple[int, str]] = []
        self.too_large: list[tuple[int, str]] = []
        self.num_too_large = 0
        self.num_missing = self.num_present = self.num_numbers = 0
        self.has_more_values = False
        self.all_whole = True
        self.numbers = Thinned()
        self.words = Thinned()
        self._decimal_comma = decimal_comma
        self._most = max(200, min(MAX_COUNTED, MAX_COUNTED_IN_ALL // num_columns))
        self._most_characters = MAX_CHARACTERS_COUNTED_IN_ALL // num_columns
        self._counted_characters = 0
        self._has_duplicates = False
        self._num_before_stop = 0
        self._counts_up = True
        self._last_number: float | None = None
        self._num_characters = 0

    def add(self, lines: Sequence[int], cells: Sequence[str]) -> None:
        """Count the cells of some rows."""
        values = [cell.strip() for cell in cells]
        missing = [index for index, value in enumerate(values) if is_missing(value)]
        if missing:
            self.num_missing += len(missing)
            room = NUM_EXAMPLES - len(self.missing_lines)
            self.missing_lines += [lines[index] for index in missing[: max(0, room)]]
            gone = set(missing)
            lines = [line for index, line in enumerate(lines) if index not in gone]
            values = [value for index, value in enumerate(values) if index not in gone]
        self.num_present += len(values)
        self._count_values(values)
        numbers = parse_numbers(values, decimal_comma=self._decimal_comma)
        if numbers is None:
            numbers = self._count_one_by_one(lines, values)
        self._count_numbers(numbers)
        if len(numbers) < len(values):
            self.words.add([len(value.split()) for value in values])

    @property
    def num_distinct(self) -> int:
        return self._num_before_stop if self.has_more_values else len(self.counts)

    @property
    def all_different(self) -> bool:
        """Whether no value comes twice, as far as values are counted."""
        return not self._has_duplicates and (self.has_more_values or len(self.counts) == self.num_present)

    @property
    def is_too_close(self) -> bool:
        """Whether its numbers differ, but by less than is left of it in the computations."""
        spread = self.numbers.highest - self.numbers.lowest
        size = max(abs(self.numbers.highest), abs(self.numbers.lowest))
        return self.num_numbers > 0 and spread < max(SMALLEST_SPREAD, SMALLEST_SHARE * size)

    @property
    def kind(self) -> str:
        """What the column holds."""
        if self.num_present == 0:
            return EMPTY
        if self.num_distinct == 1 and not self.num_missing:
            return CONSTANT
        if self.num_numbers + self.num_too_large == self.num_present:
            is_whole = self.all_whole and not self.num_too_large
            is_id = self.all_different and is_whole and self.num_present >= MIN_FOR_IDENTIFIER
            return IDENTIFIER if is_id and (self._counts_up or _is_id_name(self.name)) else NUMBER
        if self.num_numbers + self.num_too_large >= MIXED_FROM * self.num_present:
            return MIXED
        mostly_different = self.has_more_values or self.num_distinct > 0.5 * self.num_present
        if self.words.mean >= MIN_TEXT_WORDS and mostly_different:
            return TEXT
        if self.all_different and self.num_present >= MIN_FOR_IDENTIFIER:
            return IDENTIFIER
        return CATEGORY

    def about(self) -> dict[str, Any]:
        """Return what the page shows of the column."""
        return {
            "name": self.name,
            "type": self.kind,
            "num_distinct": self.num_distinct,
            "has_more_values": self.has_more_values,
            "num_missing": self.num_missing,
        }

    def _count_values(self, values: Sequence[str]) -> None:
        if self.has_more_values:
            return
        new = set(values).difference(self.counts)
        self._counted_characters += sum(map(len, new))
        self.counts.update(values)
        self._num_characters += sum(map(len, values))
        is_long = self._num_characters > LONG_VALUE * self.num_present
        self._has_duplicates = len(self.counts) < self.num_present
        is_much = self._counted_characters > self._most_characters
        if is_much or len(self.counts) > (self._most // 10 if is_long else self._most):
            self.has_more_values = True
            self._num_before_stop = len(self.counts)
            self.counts.clear()

    def _count_one_by_one(self, lines: Sequence[int], values: Sequence[str]) -> Numbers:
        found = []
        for line, value in zip(lines, values, strict=True):
            number = parse_numbers([value], decimal_comma=self._decimal_comma)
            if number is not None:
                found.append(number[0])
            elif is_too_large(value, decimal_comma=self._decimal_comma):
                self.num_too_large += 1
                if len(self.too_large) < NUM_EXAMPLES:
                    self.too_large.append((line, value))
            elif len(self.not_numbers) < NUM_EXAMPLES:
                self.not_numbers.append((line, value))
        return np.array(found, dtype=np.float64)

    def _count_numbers(self, numbers: Numbers) -> None:
        if not len(numbers):
            return
        self.num_numbers += len(numbers)
        self.all_whole = self.all_whole and bool((numbers == np.floor(numbers)).all())
        before = numbers[0] - 1 if self._last_number is None else self._last_number
        self._counts_up = self._counts_up and bool((np.diff(numbers, prepend=before) == 1).all())
        self._last_number = float(numbers[-1])
        self.numbers.add(numbers.tolist())


class Thinned:
    """Keeps every n-th of many numbers, n growing with them: enough for a median, little to hold."""

    MOST = 10_000

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._every = 1
        self._num = 0
        self._sum = 0.0
        self.lowest = np.inf
        self.highest = -np.inf

    def add(self, values: Sequence[float]) -> None:
        """Take some more."""
        if not values:
            return
        self._kept += values[-self._num % self._every :: self._every]
        self._num += len(values)
        self._sum += float(sum(values))
        self.lowest = min(self.lowest, min(values))
        self.highest = max(self.highest, max(values))
        while len(self._kept) > self.MOST:
            self._kept = self._kept[::2]
            self._every *= 2

    @property
    def mean(self) -> float:
        return self._sum / self._num if self._num else 0.0

    def quantile(self, share: float) -> float:
        """Return the value below which a share of them lies, nearly."""
        return float(np.quantile(self._kept, share))

    def histogram(self, num_bins: int) -> list[int]:
        """Return how many of those kept are in each of equally wide bins from the lowest to the highest."""
        counts: list[int] = np.histogram(self._kept, num_bins, (self.lowest, self.highest))[0].tolist()
        return counts


def parse_numbers(values: Sequence[str], *, decimal_comma: bool) -> Numbers | None:
    """Return texts as numbers that can be computed with, or None when any is none."""
    numbers = _read_numbers(values, decimal_comma=decimal_comma)
    if numbers is None or not (np.abs(numbers) <= LARGEST_NUMBER).all():  # NaN is none either
        return None
    return numbers


def is_too_large(value: str, *, decimal_comma: bool) -> bool:
    """Tell whether a text is a number, but one that is too large to be computed with."""
    numbers = _read_numbers([value], decimal_comma=decimal_comma)
    return numbers is not None and bool(abs(numbers[0]) > LARGEST_NUMBER)


def _read_numbers(values: Sequence[str], *, decimal_comma: bool) -> Numbers | None:
    joined = "".join(values)
    # Python reads 1_000 and digits of any script; such a thing in a table is rather a name.
    if "_" in joined or not joined.isascii():
        return None
    if decimal_comma and "," in joined:
        values = [value.replace(",", ".") if value.count(",") == 1 else value for value in values]
    try:
        return np.array(list(map(float, values)), dtype=np.float64)
    except ValueError:
        return None


def is_missing(value: str) -> bool:
    """Tell whether a cell, without spaces around it, stands for nothing."""
    return len(value) <= 4 and value.lower() in MISSING


def _is_id_name(name: str) -> bool:
    last = name.lower().replace("-", "_").replace(" ", "_").rpartition("_")[2]
    return last in ID_NAMES or name.endswith(("Id", "ID"))
