"""Decides what each column of a table holds, from all rows: one decision with its reason per column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.data.own.tables.table_file import Table, column, literal

NUMBER, CATEGORY, TEXT, DATE, FILE_NAME = "number", "category", "text", "date", "file name"
IDENTIFIER, INDEX, CONSTANT = "identifier", "row index", "constant"
EMPTY, MIXED, IGNORED = "empty", "mixed", "ignored"
LEFT_OUT = (IDENTIFIER, INDEX, CONSTANT, EMPTY, IGNORED, FILE_NAME)
DECIMAL_COMMA, DECIMAL_POINT = "number, decimal comma", "number, decimal point"
KINDS = (NUMBER, DECIMAL_COMMA, DECIMAL_POINT, CATEGORY, TEXT, DATE, IGNORED)  # what a user can choose

# Spellings of a missing value: of any column; and only in a column of numbers or dates.
MISSING = (
    "na", "n/a", "#n/a", "nan", "null", "none", "?", "nat", "<na>", "\\n", "-", "--", "—", "–", "(null)",
    "#null!",
)  # fmt: skip
MISSING_NUMBER = (
    *MISSING, ".", "..", "...", "unknown", "unk", "missing", "undefined", "nil", "n.a.", "n. a.", "k.a.",
    "k. a.", "not available", "not applicable", "no data", "nodata", "empty", "(empty)", "<null>",
    "#div/0!", "#value!", "#ref!", "#name?", "#num!", "*", "x", "tbd", "**", "无", "未知", "keine angabe",
)  # fmt: skip
MAX_COUNTED = 20_000
MIXED_FROM = 0.8  # this share of numbers: the rest are probably mistakes
MIN_FOR_IDENTIFIER = 10
MIN_TEXT_WORDS = 4.0
MIN_IDEOGRAPHS = 5.0
MAX_ONE_HOT = 32
NUM_EXAMPLES = 5
# A model computes with numbers of 32 bits, which end at 3.4e38 and differ by a share of their size.
LARGEST_NUMBER = 1e38
SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)
SMALLEST_SHARE = 2.0**-44
ID_NAMES = (
    "id", "ids", "index", "idx", "uuid", "guid", "key", "row", "nr", "编号", "序号", "номер", "rownames",
)  # fmt: skip
ORDERED_NAMES = (
    "year", "jahr", "month", "day", "age", "time", "date", "x", "t", "step", "epoch", "hour", "week",
    "quarter", "size",
)  # fmt: skip
IMAGES = r"\.(jpe?g|jfif|png|gif|bmp|webp|tiff?|ppm|pgm|pbm|heic|heif|avif)$"
IDEOGRAPHS = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{ac00}-\x{d7af}\x{0e00}-\x{0e7f}]"
_BODY = r"[0-9][0-9.,'’\x{a0}\x{202f} ]*(?:[eE][+-]?[0-9]+)?|[.,][0-9]+(?:[eE][+-]?[0-9]+)?"
_NUMBER_HERE = "\u0001"  # stands for the number when the rest of a cell is looked at
_SIGN = r"[-+−–(]?"
# Decimal mark, thousands separator. The first of those that fit as many cells is taken.
_MARKS = ((",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"), (".", ""))
DATE_FORMATS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%y", "%b %d %Y", "%d %b %Y", "%B %d %Y", "%d %B %Y",
    "%b %d, %Y", "%B %d, %Y", "%d. %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b-%d-%Y", "%a %b %d %Y", "%Y年%m月%d日",
    "%Y-%m", "%b %Y", "%B %Y", "%m/%Y", "%Y%m%d",
)  # fmt: skip
_LIKE_A_DATE = (
    r"(?i)[0-9]{1,4}[-/. ][0-9]{1,2}[-/. ][0-9]{1,4}.*|[0-9]{4}-[0-9]{1,2}|[0-9]{1,2}/[0-9]{4}|[12][0-9]{7}"
    r"|[0-9]{4}年.*"
    r"|(?:[a-z]{3},? )?[0-9]{0,2}[-. ]{0,2}(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec).*[0-9]{2,4}.*"
)


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How the numbers of a column are written."""

    decimal: str = "."
    thousands: str = ""
    unit: str = ""
    is_plain: bool = False  # as programs write them: 1234.5, -1e-3

    @property
    def pattern(self) -> str:
        """A regular expression that matches these numbers and nothing else."""
        point = re.escape(self.decimal)
        mark = {" ": r"[ \x{a0}\x{202f}]", "'": "['’]"}.get(self.thousands, re.escape(self.thousands))
        whole = "[0-9]+"
        if mark:
            indian = f"[1-9][0-9]?(?:{mark}[0-9]{{2}})+{mark}[0-9]{{3}}"
            whole = f"(?:[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+|{indian}|[0-9]+)"
        unit = f"(?:{re.escape(self.unit)})?" if self.unit else ""
        number = rf"(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?"
        return rf"{_SIGN}\s*{unit}\s*{_SIGN}\s*{number}\s*{unit}\)?"

    def sql(self, cell: str) -> str:
        """Return SQL of the cell as a number; NULL for what is none."""
        if self.is_plain:
            return f"TRY_CAST(translate({cell}, '_(', 'xx') AS DOUBLE)"  # 1_000 and nan(1) are names
        body = f"regexp_extract({cell}, {literal(_BODY)})"
        gone = {" ": " \u00a0\u202f", "'": "'’"}.get(self.thousands, self.thousands) + " \u00a0\u202f"
        body = f"translate({body}, {literal(gone)}, '')"
        if self.decimal == ",":
            body = f"replace({body}, ',', '.')"
        sign = f"CASE WHEN regexp_matches({cell}, '^[^0-9]*[-−–(]') THEN -1 ELSE 1 END"
        matches = f"regexp_full_match({cell}, {literal(self.pattern)})"
        return f"CASE WHEN {matches} THEN {sign} * TRY_CAST({body} AS DOUBLE) END"

    def words(self) -> str:
        """Return what is unusual about it; empty for plain numbers."""
        names = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
        said = ["a decimal comma"] if self.decimal == "," else []
        said += [f"{names[self.thousands]} between thousands"] if self.thousands else []
        said += [f"the unit {self.unit}"] if self.unit else []
        return " and ".join(said) or "signs of its own"


PLAIN = Notation(is_plain=True)


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one column holds.

    Attributes:
        missing: spellings that stand for no value.
        confidence: "high", "medium" where another reading is possible, or "low".
        reason: why it is of this kind, as the second half of a sentence.
        date_format: of a column of dates.
        num_digits: cells with a digit, of a column that is not all numbers.
    """

    index: int
    name: str
    kind: str
    num_rows: int
    num_present: int
    num_distinct: int
    missing: tuple[str, ...] = ()
    reason: str = ""
    confidence: str = "high"
    notation: Notation = PLAIN
    date_format: str = ""
    words: float = 0.0
    characters: float = 0.0
    ideographs: bool = False
    num_digits: int = 0
    num_numbers: int = 0
    num_too_large: int = 0
    all_whole: bool = False
    lowest: float = 0.0
    highest: float = 0.0
    quartiles: tuple[float, float, float] = (0.0, 0.0, 0.0)
    is_chosen: bool = False
    example: tuple[str, str] = ("", "")

    @property
    def num_missing(self) -> int:
        return self.num_rows - self.num_present

    @property
    def all_different(self) -> bool:
        return self.num_distinct == self.num_present and self.num_present > 0

    @property
    def is_too_close(self) -> bool:
        """True if its numbers differ by less than is left of it in the computations."""
        size = max(abs(self.highest), abs(self.lowest))
        spread = self.highest - self.lowest
        return self.num_numbers > 0 and spread < max(SMALLEST_SPREAD, SMALLEST_SHARE * size)

    @property
    def cell(self) -> str:
        """SQL of a cell: its text, NULL for a missing value."""
        plain = column(self.index)
        if not self.missing:
            return plain
        return f"CASE WHEN {plain} IN ({', '.join(map(literal, self.missing))}) THEN NULL ELSE {plain} END"

    @property
    def number(self) -> str:
        """SQL of a cell as a number, NULL for a missing value and for what is none."""
        return self.notation.sql(self.cell)

    @property
    def date(self) -> str:
        """SQL of a cell as a date."""
        return _date_sql(self.cell, self.date_format)

    def line(self, *, is_label: bool = False) -> str:
        """Return the decision in one line, without the column's name."""
        what = {MIXED: "number"}.get(self.kind, self.kind)
        if self.kind in (NUMBER, MIXED) and not self.notation.is_plain:
            what += f" with {self.notation.words()}, {self.example[0]} → {self.example[1]}"
        elif self.kind == DATE and not is_label:
            what += f" ({self.date_format}): becomes year, month, weekday and elapsed days"
        elif self.kind in LEFT_OUT and not is_label:
            what += ", ignored"
        if self.missing and self.num_missing:
            shown = ", ".join(f"‘{each}’" for each in self.missing[:3])
            what += f"; {shown} {'means' if len(self.missing) == 1 else 'mean'} missing"
        return what if not self.reason or self.is_chosen else f"{what}: {self.reason}"


def read_columns(table: Table, wanted: Mapping[str, Any], missing: Mapping[str, Any]) -> list[Column]:
    """Decide what each column holds.

    Args:
        wanted: kinds that the user has chosen, by the name of the column.
        missing: further spellings of missing values, by the name of the column.
    """
    columns = [_with_reading(table, each, wanted, missing) for each in _profiles(table)]
    decimals = {
        each.notation.decimal
        for each in columns
        if each.confidence == "high" and each.notation.decimal == ","
    }
    columns = [_resolved(table, each, bool(decimals)) for each in columns]
    columns = _with_numbers(table, columns)
    features = [each for each in columns if each.kind in (NUMBER, CATEGORY, TEXT, DATE, MIXED)]
    return [_without_names(table, each, len(features) > 2) for each in columns]


def _profiles(table: Table) -> Iterator[Column]:
    """Yield what plain counting says of each column; several in one pass."""
    at_once = _at_once(table)
    places = list(range(len(table.names)))
    for start in range(0, len(places), at_once):
        asked = []
        for cell in map(column, places[start : start + at_once]):
            asked += [
                f"count({cell})",
                f"count(DISTINCT {cell})",
                f"count({PLAIN.sql(cell)})",
                f"avg(length({cell}))",
            ]
            asked.append(f"avg(length({cell}) - length(replace({cell}, ' ', '')) + 1)")
            asked.append(f"coalesce(bool_or(isnan({PLAIN.sql(cell)})), false)")
        (values,) = table.query(f"SELECT {', '.join(asked)} FROM rows")
        for offset, place in enumerate(places[start : start + at_once]):
            present, distinct, plain, characters, words, has_nan = values[6 * offset : 6 * offset + 6]
            found = Column(
                index=place,
                name=table.names[place],
                kind="",
                num_rows=table.num_rows,
                num_present=present,
                num_distinct=distinct,
                num_numbers=plain,
                missing=("nan",) if has_nan else (),
                characters=characters or 0.0,
                words=words or 0.0,
            )
            if plain == present:
                yield found
                continue
            foreign = f"sum(n * (length(v) - length(regexp_replace(v, {literal(IDEOGRAPHS)}, '', 'g'))))"
            digits = "coalesce(sum(n) FILTER (regexp_matches(v, '[0-9]')), 0)"
            ((num_digits, ideographs),) = table.query(
                f"SELECT {digits}, {foreign} FROM {_values(column(place))}"
            )
            is_foreign = (ideographs or 0) >= MIN_IDEOGRAPHS * max(1, present)
            yield replace(found, ideographs=is_foreign, num_digits=int(num_digits))


def _values(cell: str) -> str:
    """Return SQL of a table of the different values v of a cell, and how often each occurs, n."""
    return f"(SELECT {cell} AS v, count(*) AS n FROM rows WHERE {cell} IS NOT NULL GROUP BY v)"


def _with_reading(
    table: Table, profile: Column, wanted: Mapping[str, Any], missing: Mapping[str, Any]
) -> Column:
    """Decide between number, date, text and category."""
    chosen = str(wanted.get(profile.name, ""))
    extra = tuple(str(each).lower() for each in missing.get(profile.name, ()))
    has_nan, profile = profile.missing, replace(profile, is_chosen=bool(chosen), missing=())
    if profile.num_present == 0:
        return replace(profile, kind=EMPTY, reason="no cell has a value")
    if chosen in (IGNORED, CATEGORY, TEXT):
        return _counted(table, profile, MISSING, kind=chosen, extra=extra, reason="chosen")
    dated = _dated(table, profile, chosen)
    if dated is not None:
        return dated
    if chosen == DATE:
        return replace(profile, kind=CATEGORY, reason="no date could be read", confidence="low")
    is_plain = profile.num_numbers == profile.num_present
    if not chosen and is_plain and not extra:
        return replace(profile, kind=NUMBER, missing=_spelled(table, profile, has_nan))
    cell = column(profile.index)
    names = f"SELECT count(*) FROM rows WHERE regexp_matches({cell}, {literal('(?i)' + IMAGES)})"
    if (
        not chosen
        and not is_plain
        and profile.characters < 300
        and table.value(names) >= 0.95 * profile.num_present
    ):
        reason = "the cells are names of image files"
        return _counted(table, profile, MISSING, kind=FILE_NAME, extra=extra, reason=reason)
    if (is_plain or profile.characters < 40) and (profile.num_digits or chosen):
        number = _as_number(table, profile, chosen, extra)
        if number is not None:
            return number
    if _is_text(profile):
        return _counted(table, profile, (), kind=TEXT, extra=extra)
    return _counted(table, profile, MISSING, kind=CATEGORY, extra=extra)


def _dated(table: Table, profile: Column, chosen: str) -> Column | None:
    """Return the column as dates, or None if it does not hold them."""
    if chosen not in ("", DATE):
        return None
    if (
        not chosen and profile.num_numbers == profile.num_present
    ):  # 20240131 is a date if its column is called one
        is_called = profile.characters == 8 and re.search("dat|day|tag", profile.name.lower())
        return _as_date(table, profile, least=1.0) if is_called else None
    if not chosen and (profile.num_digits <= 0.5 * profile.num_present or profile.characters >= 60):
        return None
    spelled = replace(profile, missing=_spelled(table, profile, MISSING_NUMBER))
    return _as_date(table, spelled, least=0.01 if chosen else 0.95)


def _is_text(profile: Column) -> bool:
    is_long = profile.words >= MIN_TEXT_WORDS or profile.ideographs
    is_much = profile.num_distinct > 0.5 * profile.num_present or profile.num_distinct > 4 * MAX_ONE_HOT
    return is_long and is_much and profile.num_distinct > 1


def _spelled(
    table: Table, profile: Column, spellings: Sequence[str], extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return those of some spellings that occur in a column."""
    if not spellings and not extra:
        return ()
    asked = ", ".join(map(literal, {*spellings, *extra}))
    cell = column(profile.index)
    found = table.query(
        f"SELECT {cell}, count(*) AS n FROM rows WHERE lower({cell}) IN ({asked}) GROUP BY 1 "
        f"ORDER BY n DESC, 1 LIMIT 100"
    )
    return tuple(str(name) for name, _ in found)


def _counted(
    table: Table,
    profile: Column,
    spellings: Sequence[str],
    *,
    kind: str,
    extra: Sequence[str] = (),
    reason: str = "",
) -> Column:
    """Return a column of this kind with these spellings of missing values."""
    found = _spelled(table, profile, spellings, extra)
    if not found:
        return replace(profile, kind=kind, reason=reason)
    some = replace(profile, kind=kind, reason=reason, missing=found)
    ((present, distinct),) = table.query(f"SELECT count({some.cell}), count(DISTINCT {some.cell}) FROM rows")
    return replace(some, num_present=present, num_distinct=distinct)


def _as_number(table: Table, profile: Column, chosen: str, extra: Sequence[str]) -> Column | None:
    """Return the column as numbers with their notation, or None if it holds something else."""
    cell = column(profile.index)
    missing = set(_spelled(table, profile, MISSING_NUMBER, extra))
    known = (
        f"CASE WHEN {cell} IN ({', '.join(map(literal, missing))}) THEN NULL ELSE {cell} END"
        if missing
        else cell
    )
    shape = f"trim(regexp_replace({known}, {literal(_BODY)}, '{_NUMBER_HERE}'))"
    shapes = table.query(
        f"SELECT {shape.replace(known, 'v')} AS s, sum(n)::BIGINT AS m FROM {_values(known)} GROUP BY s "
        "ORDER BY m DESC, s LIMIT 200"
    )
    units: dict[str, int] = {}
    others: dict[str, int] = {}
    num_bare = 0
    for text, count in shapes:
        if _NUMBER_HERE not in text:
            others[text] = count
            continue
        unit = re.sub(rf"[-+−–()\s{_NUMBER_HERE}]", "", text) if text.count(_NUMBER_HERE) == 1 else "0"
        if unit == "":
            num_bare += count
        elif not re.search(r"\d", unit) and len(unit) <= 12:
            units[unit] = units.get(unit, 0) + count
    unit = max(units, key=lambda name: units[name], default="")
    num_like = num_bare + sum(units.values())
    is_usual = (
        bool(units) and units[unit] >= 0.2 * num_like and num_bare + units[unit] > MIXED_FROM * num_like
    )
    unit = unit if is_usual else ""
    # Words among numbers stand for missing values if they are known ones, or always the same.
    guessed: set[str] = set()
    num_others = sum(others.values())
    if (
        0 < len(others) <= 2
        and min(others.values()) > 1
        and num_others < 0.3 * profile.num_present
        and not _is_ordinal(others)
    ):
        guessed = set(others)
    some = replace(profile, missing=tuple(sorted(missing | guessed)))
    marks = [
        each
        for each in _MARKS
        if not chosen or chosen == NUMBER or each[0] == ("," if chosen == DECIMAL_COMMA else ".")
    ]
    notations = [Notation(decimal=point, thousands=mark, unit=unit) for point, mark in marks]
    tests = [f"regexp_full_match(v, {literal(each.pattern)})" for each in notations]
    tests += ["true", f"{PLAIN.sql('v')} IS NOT NULL", "regexp_matches(v, '^[-+]?[0-9]{4,}')"]
    asked = [f"coalesce(sum(n) FILTER ({test}), 0)::BIGINT" for test in tests]
    (values,) = table.query(f"SELECT {', '.join(asked)}, count(v) FROM {_values(some.cell)}")
    *fits, present, plain, num_long, distinct = values
    best = max([*fits, plain])
    if present == 0 or (best < MIXED_FROM * present and not chosen) or (best == 0):
        return None
    kind = NUMBER if best == present else MIXED
    confidence, reason = "high", ""
    if plain == best and chosen not in (DECIMAL_COMMA,):
        notation = PLAIN
    else:
        fitting = [each for each, count in zip(notations, fits, strict=True) if count == best]
        notation = next((each for each in fitting if each == Notation(unit=unit)), fitting[0])
        # 1,266: a thousand or one and a quarter? Thousands, unless longer numbers lack the separator.
        grouped = next((each for each in fitting if each.thousands), None)
        if (
            not notation.thousands
            and grouped is not None
            and notation.decimal != grouped.decimal
            and not chosen
        ):
            notation = notation if num_long else grouped
            confidence = "medium"
            reason = (
                "every separator has three digits after it"
                if not num_long
                else "longer numbers have no separator"
            )
    if guessed:
        confidence = "medium"
    return replace(
        some,
        kind=kind,
        notation=notation,
        num_present=present,
        num_distinct=distinct,
        confidence=confidence,
        reason=reason,
        num_numbers=best,
    )


def _is_ordinal(others: Mapping[str, int]) -> bool:
    """Return True for words that are values among numbers, such as the 'more' of 1, 2, 3, more."""
    return any(
        re.search(r"more|less|over|under|mehr|weniger|inf|yes|no\b|true|false", text) for text in others
    )


def _date_sql(cell: str, form: str) -> str:
    date = f"regexp_replace({cell}, '[T ,]+[0-9]{{1,2}}:[0-9]{{2}}.*$', '')"
    # Two digits are no year of %Y.
    parsed = f"CAST(TRY_STRPTIME({date}, {literal(form)}) AS DATE)"
    return f"CASE WHEN year({parsed}) BETWEEN 1000 AND 2999 THEN {parsed} END"


def _as_date(table: Table, profile: Column, least: float) -> Column | None:
    """Return the column as dates, or None if too few cells are dates of one format."""
    cell = profile.cell
    values = _values(cell)
    like = f"coalesce(sum(n) FILTER (regexp_full_match(v, {literal(_LIKE_A_DATE)})), 0)"
    ((num_like, present),) = table.query(f"SELECT {like}, coalesce(sum(n), 0) FROM {values}")
    if not present or num_like < least * present:
        return None
    # Most formats do not fit even some of the values.
    dates = [_date_sql("v", form) for form in DATE_FORMATS]
    counts = ", ".join(f"count({date})" for date in dates)
    some = table.query(f"SELECT {counts}, count(v) FROM (SELECT v FROM {values} LIMIT 200)")[0]
    forms = [form for form, count in zip(DATE_FORMATS, some, strict=False) if count > 0.5 * least * some[-1]]
    if not forms:
        return None
    asked = ", ".join(
        f"coalesce(sum(n) FILTER ({_date_sql('v', form)} IS NOT NULL), 0)::BIGINT" for form in forms
    )
    fits = table.query(f"SELECT {asked} FROM {values}")[0]
    best = max(fits)
    if best < max(1, least * present):
        return None
    fitting = [form for form, count in zip(forms, fits, strict=True) if count == best]
    confidence, reason = "high", ""
    if (
        {"%m/%d/%Y", "%d/%m/%Y"} <= set(fitting)
        or {"%m/%d/%y", "%d/%m/%y"} <= set(fitting)
        or {"%d-%m-%Y", "%m-%d-%Y"} <= set(fitting)
    ):
        confidence, reason = "medium", "day and month could be the other way round"
    found = replace(profile, kind=DATE, date_format=fitting[0], confidence=confidence, reason=reason)
    ((there, distinct),) = table.query(f"SELECT count({found.date}), count(DISTINCT {found.date}) FROM rows")
    return replace(found, num_present=there, num_distinct=distinct)


def _resolved(table: Table, each: Column, has_decimal_commas: bool) -> Column:
    """Read ambiguous separators as the other columns of the file have them."""
    if each.is_chosen or not has_decimal_commas or each.kind != NUMBER:
        return each
    if each.confidence == "medium" and each.notation.thousands == ",":
        return replace(
            each,
            notation=Notation(decimal=",", unit=each.notation.unit),
            reason="other columns have decimal commas",
        )
    if each.notation.is_plain:
        grouped = Notation(decimal=",", thousands=".")
        marked = f"count(*) FILTER (contains({each.cell}, '.'))"
        fits = (
            f"count(*) FILTER (contains({each.cell}, '.') AND regexp_full_match({each.cell}, "
            f"{literal(grouped.pattern)}))"
        )
        ((num_marked, num_fits),) = table.query(f"SELECT {marked}, {fits} FROM rows")
        if num_marked and num_marked == num_fits:
            return replace(
                each, notation=grouped, confidence="medium", reason="other columns have decimal commas"
            )
    return each


def _with_numbers(table: Table, columns: Sequence[Column]) -> list[Column]:
    """Add what the numbers of the columns are; several columns in one pass."""
    found = {each.index: each for each in columns}
    for each in columns:
        is_same = each.num_distinct == 1 and not each.num_missing and not each.is_chosen
        if each.kind in (CATEGORY, FILE_NAME) and is_same:
            found[each.index] = replace(each, kind=CONSTANT, reason="all cells are the same")
    numbers = [each for each in columns if each.kind in (NUMBER, MIXED)]
    quantile = "approx_quantile" if table.num_rows > 2_000_000 else "quantile_cont"
    at_once = _at_once(table)
    for start in range(0, len(numbers), at_once):
        some = numbers[start : start + at_once]
        cells = ", ".join(f"{each.cell} AS t{k}, {each.number} AS m{k}" for k, each in enumerate(some))
        asked = []
        for k in range(len(some)):
            usable = f"CASE WHEN abs(m{k}) <= {LARGEST_NUMBER!r} THEN m{k} END"
            asked += [f"count(t{k})", f"count({usable})", f"count(*) FILTER (abs(m{k}) > {LARGEST_NUMBER!r})"]
            asked += [f"min({usable})", f"max({usable})", f"bool_and({usable} = floor({usable}))"]
            asked += [f"{quantile}({usable}, [0.25, 0.5, 0.75])", f"count(DISTINCT {usable})"]
        (values,) = table.query(f"SELECT {', '.join(asked)} FROM (SELECT {cells} FROM rows)")
        for k, each in enumerate(some):
            present, num, large, low, high, whole, quartiles, distinct = values[8 * k : 8 * k + 8]
            is_same = each.num_distinct == 1 and num == each.num_rows and not each.is_chosen
            found[each.index] = replace(
                each,
                kind=CONSTANT if is_same else NUMBER if num + large == present else MIXED,
                reason="all cells are the same" if is_same else each.reason,
                num_present=present,
                num_numbers=num,
                num_too_large=large,
                lowest=low or 0.0,
                highest=high or 0.0,
                all_whole=bool(whole) and not large,
                quartiles=tuple(quartiles or (0.0, 0.0, 0.0)),
                num_distinct=distinct + bool(large),
                example=_example(table, each),
            )
    return [found[each.index] for each in columns]


def _example(table: Table, each: Column) -> tuple[str, str]:
    """Return a cell with something unusual about its notation, and the number it is read as."""
    if each.notation.is_plain:
        return "", ""
    shown = table.query(
        f"SELECT {each.cell}, {each.number} AS n FROM rows WHERE n IS NOT NULL "
        f"ORDER BY regexp_matches({each.cell}, '[0-9][^0-9-]+[0-9]') DESC, row LIMIT 1"
    )
    return (str(shown[0][0]), f"{shown[0][1]:.12g}") if shown else ("", "")


def _at_once(table: Table) -> int:
    """Return how many columns are counted in one pass."""
    return max(4, min(20, 4_000_000 // max(1, table.num_rows)))


def _without_names(table: Table, each: Column, has_others: bool) -> Column:
    """Recognise row indexes and identifiers: values that are all different and say nothing of another row."""
    if each.is_chosen or each.num_present < MIN_FOR_IDENTIFIER or not each.all_different:
        return each
    if each.index in table.index_columns:
        return replace(each, kind=INDEX, reason="the file declares it as the index of its rows")
    if each.kind == CATEGORY:
        return replace(each, kind=IDENTIFIER, reason="all its values are different, like names of rows")
    if each.kind != NUMBER or not each.all_whole or not each.notation.is_plain:
        return each
    name = each.name.lower()
    is_nameless = re.fullmatch(r"column 1|unnamed: \d+|row name|index|level_\d|", name) is not None
    if is_nameless and each.index == 0:
        return replace(
            each, kind=INDEX, reason="whole numbers, all different, in a first column without a name"
        )
    if is_id_name(each.name):
        return replace(each, kind=IDENTIFIER, reason="whole numbers, all different, and called an identifier")
    steps = table.query(
        f"SELECT min(d), max(d) FROM (SELECT n - lag(n) OVER (ORDER BY row) AS d FROM (SELECT "
        f"row, {each.number} AS n FROM rows))"
    )[0]
    if (
        steps[0] == steps[1] != 0
        and name not in ORDERED_NAMES
        and (steps[0] == 1 or (each.index == 0 and has_others))
    ):
        return replace(
            each, kind=INDEX, reason=f"it counts up by {steps[0]:g} from row to row", confidence="medium"
        )
    return each


def is_id_name(name: str) -> bool:
    """Return True for a name such as user_id, customerID or 编号."""
    last = re.split(r"[_\-. ]", name.lower())[-1]
    return last in ID_NAMES or name.endswith(("Id", "ID", "编号"))
