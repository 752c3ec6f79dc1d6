"""Further table variants, each with the reading that a careful analyst expects."""

from __future__ import annotations

import datetime
import gzip
import io
import itertools
import json
import lzma
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch

from tests.unit.own_files import inspected, own, write_xlsx
from tests.unit.trainers.data.own.test_people_files import NUMBER, OAK, TEXTS, Reading, check, said
from trainers.data.own.problems import DataError
from trainers.data.own.table_file import Table

NUM = 60
Column = list[str]


def each(write: Callable[[int], str]) -> Column:
    return [write(n) for n in range(NUM)]


def cycle(*values: str) -> Column:
    return each(lambda n: values[n * 7 % len(values)])


HEIGHTS = [round(5.25 + 1.37 * (n * 29 % NUM), 2) for n in range(NUM)]
WIDTHS = [(n * 7919 + 13) % 90_000 + 1_000 + (n % 4 == 0) * 2_000_000 for n in range(NUM)]
HEIGHT = each(lambda n: str(HEIGHTS[n]))
WIDTH = each(lambda n: str(WIDTHS[n]))
KIND = cycle("oak", "fir", "elm")
FILM = each(
    lambda n: (
        f"{('this film was great', 'what a bad and boring film')[n % 2]}, number {n * 31 % 97} of the week"
    )
)
MOOD = cycle("good", "bad")
TREES: dict[str, Column] = {"height": HEIGHT, "width": WIDTH, "kind": KIND}


def table(
    columns: Mapping[str, Column] = TREES,
    *,
    sep: str = ",",
    header: bool = True,
    above: str = "",
    below: str = "",
    end: str = "\n",
) -> str:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if {sep, '"', "\n"} & set(text) else text

    rows = [list(columns)] * header + [list(row) for row in zip(*columns.values(), strict=True)]
    return above + "".join(sep.join(map(cell, row)) + end for row in rows) + below


def lines(change: Callable[[int, str], str], text: str | None = None) -> str:
    """Return a table with each line changed; line 0 is the header."""
    return "".join(change(n, line) + "\n" for n, line in enumerate((text or table()).splitlines()))


def with_width(write: Callable[[int], str], *, sep: str = ",", **more: Column) -> str:
    return table({"height": HEIGHT, "width": each(lambda n: write(WIDTHS[n])), **more, "kind": KIND}, sep=sep)


def grouped(n: float, mark: str, decimals: int = 0, point: str = ".") -> str:
    return f"{n:,.{decimals}f}".replace(".", "#").replace(",", mark).replace("#", point)


def indian(n: int) -> str:
    text, tail = str(n)[:-3], str(n)[-3:]
    pairs = [text[max(0, end - 2) : end] for end in range(len(text), 0, -2)]
    return ",".join([*reversed(pairs), tail])


def parquet(sql: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        duckdb.sql(f"COPY ({sql}) TO '{path}' (FORMAT parquet)")

    return write


def xlsx(
    *rows: Iterable[str], sheets: tuple[str, ...] = ("Sheet1",), **options: Any
) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_xlsx(path, [list(row) for row in rows], sheets, **options)

    return write


def zipped(name: str, text: str | bytes, others: Mapping[str, str] | None = None) -> bytes:
    to = io.BytesIO()
    with zipfile.ZipFile(to, "w") as archive:
        for each_name, content in {name: text, **(others or {})}.items():
            archive.writestr(each_name, content)
    return to.getvalue()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file, or a function that writes it, with the options of its inspection and its expected reading.

    `first`, `kinds` and `missing` are by column; no message may contain a text of `silent`.
    """

    content: str | bytes | Callable[[Path], None]
    expected: Reading
    code: str = "utf-8"
    name: str = "t.csv"
    options: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[str, str | float] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


OAKS = Reading(classes=OAK, rows=NUM)
W0 = {"width": float(WIDTHS[0])}
NAMELESS = Reading(
    classes=OAK,
    rows=NUM,
    label="column 3",
    used=("column 1", "column 2"),
    told=("no line with column names",),
)
DAY = datetime.datetime(2019, 11, 5, 13, 45, 30, tzinfo=datetime.UTC)
WHEN = [DAY + datetime.timedelta(days=23 * n, minutes=17 * n) for n in range(NUM)]


def told(*words: str, **changes: object) -> Reading:
    return Reading(**{"classes": OAK, "rows": NUM, "told": words, **changes})  # type: ignore[arg-type]


def refused(*words: str) -> Reading:
    return Reading(task="", told=words)


def letters(kinds: tuple[str, str, str], code: str, sep: str = ";") -> Case:
    """Return a table whose labels contain non-ASCII letters of a code page."""
    content = table(
        {"height": [h.replace(".", ",") for h in HEIGHT], "width": WIDTH, "kind": cycle(*kinds)}, sep=sep
    )
    return Case(
        content=content,
        code=code,
        expected=Reading(classes=set(kinds), rows=NUM),
        first=W0 | {"height": HEIGHTS[0]},
    )


def dates(write: Callable[[datetime.datetime], str], kind: str = "date", *words: str) -> Case:
    content = table({"when": [write(day) for day in WHEN], **TREES}, sep=";")
    used = ("when",) * (kind == "date") + ("height", "width")
    return Case(content=content, expected=told(*words, used=used), kinds={"when": kind},
                first={"when": "2019-11-05"} if kind == "date" else {})  # fmt: skip


def plain(
    content: str | bytes, *words: str, name: str = "t.csv", code: str = "utf-8", **changes: object
) -> Case:
    return Case(content=content, name=name, code=code, expected=told(*words, **changes), first=W0)


def is_refused(name: str, content: str | bytes, *words: str) -> Case:
    return Case(content=content, name=name, expected=refused(*words))


def form(
    write: Callable[[int], str],
    *words: str,
    first: float | None = None,
    kind: str = "number",
    name: str = "v",
) -> Case:
    """Return a table with a further column of this kind, whose first cell is read as `first`."""
    used = ("height", name, "width") if kind in ("number", "coordinates", "category") else ("height", "width")
    content = table({"height": HEIGHT, name: each(write), "width": WIDTH, "kind": KIND})
    firsts = {} if first is None else {name: first}
    return Case(content=content, expected=told(*words, used=used), kinds={name: kind}, first=firsts)


CASES: dict[str, Case] = {
    # ---- encodings
    "latin-1 Swedish": letters(("ek", "björk", "rönn på ön"), "latin-1"),
    "koi8-r Russian": letters(("Дуб", "Сосна", "Береза"), "koi8_r"),
    "gb18030 Chinese": letters(("橡树", "松树", "榆树"), "gb18030"),
    "Shift-JIS Japanese": letters(("ナラの木", "マツの木", "ニレの木"), "shift_jis"),
    "mac roman German": letters(("Eiche", "Föhre", "Bäume groß"), "mac_roman"),
    "utf-16-le without mark": Case(content=table(sep="\t"), code="utf-16-le", expected=OAKS, first=W0),
    "utf-8 mark and quoted name": Case(content='\ufeff"height"' + table()[6:], expected=OAKS),
    "one broken byte": Case(
        content=table().encode().replace(b"oak", b"oak\xe4", 1),
        expected=told("class has 1 row", "not UTF-8", classes={*OAK, "oakä"}, is_faulty=True),
    ),
    # ---- delimiters
    "tabs in .csv": Case(content=table(sep="\t"), expected=OAKS, first=W0),
    "aligned by spaces": plain(
        lines(lambda n, line: "".join(f"{c:<12}" for c in line.split(","))), name="t.txt"
    ),
    "sep= and bars": Case(content="sep=|\n" + table(sep="|"), expected=OAKS, first=W0),
    # ---- numbers
    "plain decimals of three digits": form(lambda n: f"{1 + n * 7 % 9}.{100 + n * 13 % 900}", first=1.1),
    "leading zeros": form(lambda n: f"{n % 20:05}", "leading zeros", kind="category"),
    "times of day": form(lambda n: f"{n * 5 % 24:02}:{n * 7 % 60:02}", "hours", first=0.0),
    # ---- missing values
    "? in categories": Case(
        content=table({"job": cycle("clerk", "?", "cook", "smith", "baker"), **TREES}),
        expected=told("‘?’ means missing", used=("job", "height", "width")),
        missing={"job": 12},
    ),
    # ---- index and identifiers
    "uuid": form(lambda n: str(uuid.UUID(int=n * 7919**9)), "identifier, ignored", kind="identifier"),
    # ---- lines above and below, headers
    "footer": Case(
        content=table(below="Source: Forest Service 2024\n"), expected=told("Source: Forest Service")
    ),
    "empty columns": plain(lines(lambda n, line: line.replace(",", ",,", 1) + ",,"), "empty, ignored"),
    "double names": Case(
        content=table(header=False, above="size,size,kind\n"), expected=told(used=("size", "size (2)"))
    ),
    "no header": Case(content=table(header=False), expected=NAMELESS),
    "old Mac line ends": Case(content=table(end="\r"), expected=OAKS, first=W0),
    # ---- labels
    **{
        f"{name} in the middle": Case(
            content=table({"height": HEIGHT, name: KIND, "width": WIDTH}),
            expected=told(label=name, used=("height", "width")),
        )
        for name in ("Zielvariable", "标签")
    },
    "nearly always one class": Case(
        content=table({**TREES, "kind": each(lambda n: "elm" if n in (7, 50) else "oak")}),
        expected=told("97% of the rows are of the class 'oak'", classes={"elm", "oak"}),
    ),
    # ---- texts
    "text and score": is_refused(
        "t.csv", table({"text": FILM, "score": HEIGHT}), "cannot be predicted from texts here"
    ),
    # ---- other files
    "JSON of columns": plain(
        json.dumps({name: {str(n): c for n, c in enumerate(cells)} for name, cells in TREES.items()}),
        name="t.json",
    ),
    "Parquet with nulls and dates": Case(
        name="t.parquet",
        content=parquet(
            "SELECT (i * 29 % 60)::DOUBLE + 0.5 AS height, "
            "CASE WHEN i % 6 = 1 THEN NULL ELSE i * 7919 % 997 END AS width, "
            "TIMESTAMP '2019-11-05 13:45:00' + INTERVAL (i * 23) DAY AS planted, i % 2 = 0 AS old, "
            "(['oak', 'fir', 'elm'])[i % 3 + 1] AS kind FROM range(60) t(i)"
        ),
        expected=told("missing", used=("height", "width", "planted", "old")),
        missing={"width": 10},
        kinds={"planted": "date", "old": "category"},
    ),
    "Parquet named .csv": Case(content=parquet("SELECT 1 AS a, 2 AS b"), expected=refused("Parquet")),
    "web page called .xls": is_refused(
        "t.xls", "<html><table><tr><td>1</td></tr></table></html>", "a web page or XML by its beginning"
    ),
}


# ---- dates in other languages and scripts
MONTHS = {
    "German": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "German, short": "Jan. Feb. Mär. Apr. Mai Jun. Jul. Aug. Sep. Okt. Nov. Dez.",
    "French": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "Spanish": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "Italian": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre "
    "ottobre novembre dicembre",
}
FRENCH_DAYS = ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche")
WIDE = str.maketrans("0123456789.-", "０１２３４５６７８９．－")
ARABIC = str.maketrans("0123456789.", "٠١٢٣٤٥٦٧٨٩٫")


def month(language: str, day: datetime.datetime) -> str:
    return MONTHS[language].split()[day.month - 1]


WRITTEN: dict[str, Callable[[datetime.datetime], str]] = {
    "month in German": lambda d: f"{d.day}. {month('German', d)} {d.year}",
    "short month in German": lambda d: f"{d.day:02}. {month('German, short', d)} {d.year}",
    "month in French": lambda d: f"{d.day}{'er' * (d.day == 1)} {month('French', d)} {d.year}",
    "weekday and time in French": lambda d: (
        f"{FRENCH_DAYS[d.weekday()]} {d.day} {month('French', d)} {d.year} à {d:%Hh%M}"
    ),
    "month in Spanish": lambda d: f"{d.day} de {month('Spanish', d)} de {d.year}",
    "month in Italian": lambda d: f"{d.day} {month('Italian', d)} {d.year}",
    "short month in Italian": lambda d: f"{d.day:02}-{month('Italian', d)[:3]}-{d.year % 100:02}",
    "weekday in German": lambda d: f"{('Mo', 'Di', 'Mi', 'Do', 'Fr', 'Sa', 'So')[d.weekday()]}, {d:%d.%m.%Y}",
    "ordinals": lambda d: (
        f"{d:%B} {d.day}{'th' if 3 < d.day < 21 else ['st', 'nd', 'rd', 'th'][min(3, d.day % 10 - 1)]}, "
        f"{d.year}"
    ),
    "Sept": lambda d: d.strftime("%d %b %Y").replace("Sep", "Sept"),
    "capitals": lambda d: d.strftime("%d-%b-%Y").upper(),
    "spaces after points": lambda d: f"{d.day}. {d.month}. {d.year}",
    "Hungarian": lambda d: d.strftime("%Y. %m. %d."),
    "full-width": lambda d: d.strftime("%Y年%m月%d日").translate(WIDE),
    "Korean": lambda d: f"{d.year}년 {d.month}월 {d.day}일",
    "compact with time": lambda d: d.strftime("%Y%m%dT%H%M%SZ"),
    "ctime": lambda d: d.strftime("%a %b %d %H:%M:%S %Y"),
    "zone before the year": lambda d: d.strftime("%a %b %d %H:%M:%S +0000 %Y"),
    "time in some rows": lambda d: d.strftime("%Y-%m-%d %H:%M" if d.day % 2 else "%Y-%m-%d"),
    "Uhr": lambda d: d.strftime("%d.%m.%Y, %H:%M Uhr"),
    "slashes": lambda d: d.strftime("%Y/%m/%d"),
    "English month, day": lambda d: d.strftime("%b %d, %Y"),
    "zone": lambda d: d.strftime("%Y-%m-%d %H:%M:%S.%f+02:00"),
}
CASES["dates: each notation in a column"] = Case(
    content=table(
        {**{name: [write(day) for day in WHEN] for name, write in WRITTEN.items()}, **TREES}, sep=";"
    ),
    expected=told(used=(*WRITTEN, "height", "width")),
    kinds=dict.fromkeys(WRITTEN, "date"),
    first=dict.fromkeys(WRITTEN, "2019-11-05"),
)

# ---- numbers
NOTATIONS: dict[str, Callable[[int], str]] = {
    "1,234": lambda n: grouped(n, ","),
    "1.234.567": lambda n: grouped(n, "."),
    "1 234": lambda n: grouped(n, " "),
    "1_234, no-break": lambda n: grouped(n, "\u00a0"),
    "1’234": lambda n: grouped(n, "’"),
    "1'234.00": lambda n: grouped(n, "'", 2),
    "1234,00": lambda n: f"{n},00",
    "$ 1,234.00": lambda n: "$ " + grouped(n, ",", 2),
    "1.234,00 €": lambda n: grouped(n, ".", 2, ",") + " €",
    "US$": lambda n: f"US$ {n:,}",
    "Rs. 1234": lambda n: f"Rs. {n}",
    "1 234,00 Kč": lambda n: grouped(n, "\u00a0", 2, ",") + " Kč",
    "1,234円": lambda n: f"{n:,}円",
    "12kg": lambda n: f"{n}kg",
    "12°C": lambda n: f"{n}°C",
    "+12": lambda n: f"+{n}",
    "1,234+": lambda n: f"{n:,}+",
    "1.2e3": lambda n: f"{n:.10e}",
    "'12": lambda n: f"'{n}",
    "full-width decimals": lambda n: f"{n}.00".translate(WIDE),
    "Arabic": lambda n: f"{n}.00".translate(ARABIC),
    "565K and 1.5M": lambda n: f"€{n / 1e6:.6f}M" if n > 1e6 else f"€{n / 1e3:.3f}K",
}
CASES |= {
    f"number: {name}, {sep}": Case(content=with_width(write, sep=sep), expected=OAKS, first=W0)
    for (name, write), sep in zip(NOTATIONS.items(), itertools.cycle(",;"))
}
NEGATIVE: dict[str, Callable[[int], str]] = {
    "minus sign": lambda n: f"−{n}",
    "parentheses": lambda n: f"({n:,})",
    "before the currency": lambda n: f"-${n:,}",
    "after the currency": lambda n: f"$-{n}",
    "with a unit": lambda n: f"-{n} kg",
}
CASES |= {
    f"negative: {name}": Case(content=with_width(write), expected=OAKS, first={"width": -float(WIDTHS[0])})
    for name, write in NEGATIVE.items()
}


PHONE = "identifier, ignored: phone numbers"
CASES |= {
    "phone: +49": form(lambda n: f"+49 {30 + n % 7} {n * 7919 % 10**7:07}", PHONE, kind="identifier"),
    "JSON in cells": form(lambda n: json.dumps({"a": n, "b": [1, 2]}), kind="identifier"),
    "decimal marks mixed": form(
        lambda n: f"{n}{',.'[n % 2]}{n % 90 + 10}", "some with a decimal comma", kind="ignored"
    ),
    "two currencies": form(lambda n: f"{'$€'[n % 2]}{n * 31}", "different units: $, €", kind="ignored"),
}

# ---- missing values
MISSING = (
    "", "NA", "N/A", "#N/A", "NaN", "NULL", "None", "-", "--", "—", "?", ".", "unknown", "k.A.", "n.a.",
    "(null)", "\\N", "<NA>", "#DIV/0!", "#NV", "未知", "*", "refused", "keine Angabe",
)  # fmt: skip
BY_SPELLING = {f"width {number}": spelling for number, spelling in enumerate(MISSING)}
CASES |= {
    f"missing: each spelling in a column, 1{more}": Case(
        content=table(
            {
                **{
                    name: each(  # type: ignore[misc]
                        lambda n, s=spelling, k=shift, m=more: s if n % 7 == 1 else f"{WIDTHS[n - k]}{m}"
                    )
                    for shift, (name, spelling) in enumerate(BY_SPELLING.items())
                },
                "kind": KIND,
            },
            sep=";",
        ),
        expected=told(used=tuple(BY_SPELLING)),
        kinds=dict.fromkeys(BY_SPELLING, "number"),
        missing=dict.fromkeys(BY_SPELLING, 9),
    )
    for more in ("", ",5")
}

# ---- headers and lines
TEXT = table()
QUOTED = [[f'"{c}"' for c in line.split(",")] for line in TEXT.splitlines()]


def joined(sep: str) -> str:
    return "".join(sep.join(cells) + "\n" for cells in QUOTED)


def first_column(write: Callable[[int], str]) -> str:
    return lines(lambda n, line: f"{write(n)},{line}")


CASES |= {
    "title and empty line": plain("Bäume im Park\n\n" + TEXT, "Bäume im Park"),
    "comments above": plain("# a comment\n# and another, with comma\n" + TEXT, "a comment"),
    "title, groups, names, units": plain(
        "Trees,,\nsize,,what\n" + lines(lambda n, line: line + "\n(m),(mm),-" * (not n)), "Trees", "(m), (mm)"
    ),
    "names in a comment": plain("# " + TEXT),
    "names with other delimiter": plain(TEXT.replace(",", ";", 2)),
    "empty lines": plain("\n\n" + TEXT.replace("\n", "\n\n")),
    "trailing delimiter": plain(TEXT.replace("\n", ",\n")),
    "all quoted": plain(joined(",")),
    "single quotes": plain(joined(",").replace('"', "'")),
    "lines in quotes": plain(lines(lambda n, line: f'"{line}"')),
    "no-break spaces around": plain(TEXT.replace(",", "\u00a0,\u00a0")),
    "mixed line ends": plain(TEXT.replace("\n", "\r\n", 20)),
    "row names": plain(lines(lambda n, line: f'"{n}",{line}' if n else line), "row names"),
    "nameless index": plain(first_column(lambda n: str(n * 37 % 61) if n else ""), "row index"),
    "addresses": plain(first_column(lambda n: f"https://example.org/{n}" if n else "url"), "identifier"),
    **{
        f"suffix {suffix}": plain(table(sep=sep), name=f"t{suffix}")
        for suffix, sep in {".dat": "\t", "": ",", ".tsv": ";", ".xlsx": ","}.items()
    },
}

# ---- a column that defines the split
CASES |= {
    "train is no split": Case(
        content=table({**TREES, "way": cycle("train", "bus", "car"), "kind": KIND}),
        expected=told(label="way", used=("height", "width", "kind"), classes={"train", "bus", "car"}),
    )
}

# ---- other formats
LIBSVM = "".join(
    f"{'+-'[n % 2]}1 1:{HEIGHTS[n]} 3:{WIDTHS[n]}{f' 4:{n}' * (n % 3 > 0)}\n" for n in range(NUM)
)
SIGNS = Reading(label="label", used=("1", "3", "4"), classes={"1", "-1"}, rows=NUM, told=("read as LibSVM",))
ARFF = (
    "% trees\n@RELATION trees\n\n@ATTRIBUTE height NUMERIC\n@attribute 'the width' real\n"
    "@attribute kind {oak,fir,elm}\n\n@DATA\n"
)


CASES |= {
    "LibSVM without suffix": Case(
        content=LIBSVM, name="heart_scale", expected=SIGNS, first={"3": float(WIDTHS[0])}
    ),
    "ARFF": Case(
        content=ARFF + table(header=False),
        name="t.arff",
        expected=told("read as ARFF", used=("height", "the width")),
    ),
    "fastText": Case(
        content="".join(f"__label__{MOOD[n]} {FILM[n]}\n" for n in range(NUM)),
        name="t.txt",
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    "NumPy": is_refused("t.npy", b"\x93NUMPY\1\0" + bytes(90), "a NumPy array"),
    "JSON Lines of lists": is_refused("t.jsonl", "[1, 2]\n" * 9, "lists or single values, not objects"),
}

# ---- compressed
PACKED = TEXT.encode()
CASES |= {
    "gzip": plain(gzip.compress(PACKED), name="t.csv.gz"),
    "xz": plain(lzma.compress(PACKED), name="t.csv.xz"),
    "zip of one table with leftovers": plain(
        zipped("a/t.csv", TEXT, {"__MACOSX/a/._t.csv": "x", "README.txt": "trees"}), name="t.zip"
    ),
    "zip of a competition": plain(
        zipped("train.csv", TEXT, {"test.csv": TEXT[:99], "sample_submission.csv": "id,kind\n"}),
        "'train.csv' is read; there are also 'sample_submission.csv', 'test.csv'",
        name="t.zip",
    ),
    "zip of two tables": is_refused(
        "t.zip", zipped("a.csv", TEXT, {"b.csv": TEXT}), "it holds 2 tables: 'a.csv', 'b.csv'"
    ),
    "gzip bomb": is_refused("t.csv.gz", gzip.compress(b"1,2,a\n" * 5_000_000), "grows more than 100-fold"),
    "tar": is_refused("t.tar.gz", gzip.compress(bytes(900)), "Unpack it and give the folder"),
}


CASES |= {
    "uncertainty": form(
        lambda n: f"{12 + n * 7 % 31} ± {n % 5}", "without its uncertainty: 12 ± 3 is read as 12", first=12.0
    ),
    "fractions": form(
        lambda n: ("1/8", "1/4", "3/8", "1 1/2", "2")[n * 7 % 5], "1/8 is read as 0.125", first=0.125
    ),
    "coordinates": form(
        lambda n: f"{52 + n * 7 % 31 / 100:.3f}, {13 + n * 11 % 37 / 100:.3f}",
        "becomes two numbers",
        kind="coordinates",
    ),
    "a second table": Case(
        content=table(below="\nspecies,count\noak,20\nfir,20\nelm,20\n"),
        expected=refused("A second table may begin in line 63, with 2 columns: move it to a file of its own"),
    ),
    "short row": Case(
        content=table(below="5,oak\n" + "\n".join(table().splitlines()[1:5]) + "\n"),
        expected=refused("line 62 has 2", "a cell without a value still needs its delimiter"),
    ),
    **{
        f"number {write(12345)}": Case(
            content=with_width(write, sep=";"), expected=told("number"), first={"width": float(WIDTHS[0])}
        )
        for write in (
            lambda n: grouped(n, "\u2009", 2, ","),
            lambda n: f"Fr. {n}.—",
            lambda n: f"Rs. {indian(n)}/-",
            lambda n: f"{n} kg/m2",
            lambda n: f"{n}*" if n % 3 else f"{n}[2]",
            lambda n: f"{n / 1e5:.5f} Lac" if n < 1_000_000 else f"{n / 1e7:.7f} Cr",
        )
    },
    "durations in words": form(
        lambda n: f"{n % 3 + 1}h {n * 7 % 60}min" if n % 5 else "45 min", "1h 30min is read as 90", first=45.0
    ),
    "hours with decimals": form(lambda n: f"{n % 9 + 2}{'.5' * (n % 3 == 1)}h", "the unit h", first=2.0),
    "hyphens before a word": form(lambda n: f"{n % 4 + 2}-door", kind="category"),
    "dates in two formats": dates(
        lambda d: d.strftime("%Y-%m-%d" if d.day % 2 else "%d.%m.%Y"), "ignored", "dates in several formats"
    ),
    "dates that may have the day first": Case(
        content=table({"when": each(lambda n: f"{n * 7 % 12 + 1:02}/{n * 5 % 12 + 1:02}/2021"), **TREES}),
        expected=told(
            "the month is read first",
            used=("when", "height", "width"),
            suggested=("data_reading", "date, day first"),
        ),
        kinds={"when": "date"},
    ),
    "texts below one name": is_refused(
        "t.csv", "text\n" + "a line of words\n" * 60, "there is one column only"
    ),
}


RECORDS = [dict(zip(TREES, row, strict=True)) for row in zip(*TREES.values(), strict=True)]
NESTED_TEXTS = [
    {"id": n, "data": {"text": FILM[n], "meta": {"lang": "en"}}, "annotations": [{"mood": MOOD[n]}]}
    for n in range(NUM)
]
CASES |= {
    # ---- JSON with a mark, in other encodings, deeper, of objects
    **{
        f"JSON in {code}": plain(json.dumps(RECORDS), name="t.json", code=code)
        for code in ("utf-8-sig", "utf-16", "utf-16-be")
    },
    "JSON Lines with a mark": plain(
        "".join(json.dumps(each) + "\n" for each in RECORDS), name="t.jsonl", code="utf-8-sig"
    ),
    "JSON in an object in another encoding": plain(
        json.dumps({"data": RECORDS}), "the list 'data' in it is read", name="t.json", code="utf-16"
    ),
    "JSON list in an object in an object": plain(
        json.dumps({"status": "ok", "result": {"count": NUM, "items": RECORDS}}),
        "the list 'items' in it is read",
        name="t.json",
    ),
    "JSON objects in objects": Case(
        name="t.jsonl",
        content="".join(json.dumps(each) + "\n" for each in NESTED_TEXTS),
        expected=Reading(
            task=TEXTS,
            label="annotations.mood",
            used=("data.text",),
            classes={"good", "bad"},
            rows=NUM,
            told=("data.meta.lang: constant",),
        ),
    ),
    "JSON cut off": Case(
        name="t.json",
        content=json.dumps(RECORDS)[:-40],
        expected=refused("Malformed JSON"),
        silent=("/tmp", "source.json"),
    ),
    # ---- spreadsheets
    "merged cells": Case(
        name="t.xlsx",
        content=xlsx(
            ("plot", "height", "kind"),
            *([f"plot {n // 4 % 5}" if n % 4 == 0 else "", HEIGHT[n], KIND[n]] for n in range(NUM)),
            merged=[f"A{n}:A{n + 3}" for n in range(2, NUM + 2, 4)],
        ),
        expected=told(
            "45 cells are merged with others; they are read with their value",
            "plot: category",
            used=("plot", "height"),
        ),
        missing={"plot": 0},
    ),
    "durations of more than a day": Case(
        name="t.xlsx",
        content=xlsx(
            ("taken", "width", "kind"),
            *([f"{1 + n * 7 % 31 / 16:.4f}", WIDTH[n], KIND[n]] for n in range(NUM)),
            has_durations=True,
        ),
        expected=told("hours and minutes", used=("taken", "width")),
        first={"taken": 24.0},
    ),
    "an empty first sheet": plain(
        xlsx(TREES, *zip(*TREES.values(), strict=True), sheets=("Empty", "Data"), empty=["Empty"]),  # type: ignore[arg-type]
        "the sheet 'Data' is read; there are also 'Empty'",
        name="t.xlsx",
    ),
    "days as spreadsheets count": Case(
        content=table({"Order Date": each(lambda n: str(45000 + n * 137 % 900)), **TREES}),
        expected=told("days since 1899-12-30", used=("Order Date", "height", "width")),
        kinds={"Order Date": "date"},
        first={"Order Date": "2023-03-15"},
    ),
    "numbers of five digits": form(lambda n: str(45000 + n * 137 % 900), "v: number", first=45000.0),
    # ---- labels and units
    "lists of labels": Case(
        content=table({**TREES, "kind": cycle("['oak', 'elm']", "['oak']", "['elm']", "['fir']")}),
        expected=told(
            "cells hold several labels, such as '['oak','elm']'",
            classes={"['oak', 'elm']", "['oak']", "['elm']", "['fir']"},
        ),
    ),
    "cp1255 Hebrew": letters(("אלון ירוק", "אורן גבוה", "ברוש זקן"), "cp1255"),
}


# Each misreading, written differently, and what looks like it but was read correctly.
CASES |= {
    # ---- two units in one column, of which one belongs to the form of the cells
    "minutes and seasons": form(
        lambda n: f"{80 + n} min" if n % 10 < 7 else f"{n % 5 + 2} Seasons",
        "different units: min, Seasons",
        kind="ignored",
    ),
    # ---- sums of units, and units that are parts of each other
    **{
        f"sums such as {write(0)}": form(write, words, first=first)
        for words, first, write in (
            ("of minutes", 80.0, lambda n: f"PT1H{20 + n % 40}M" if n % 4 != 1 else f"PT{n * 7 % 60}M"),
            ("of minutes", 125.5, lambda n: f"2h {5 + n * 7 % 50}m {30 + n % 9}s"),
            ("of minutes", 0.15, lambda n: f"{9 + n % 50}s" if n % 3 == 0 else f"{n % 9 + 1}h {n * 7 % 60}m"),
            ("of minutes", 2880.0, lambda n: f"{n % 8 + 2} days" if n % 4 == 0 else f"{n % 9} hours 5 mins"),
            ("of days", 72.0, lambda n: f"{10 + n % 20}w 2d"),
            (
                "of months",
                12.0,
                lambda n: ("< 1 year", "10+ years")[n // 11 % 2] if n % 11 == 0 else f"{n % 11} years",
            ),
            ("of ounces", 83.0, lambda n: f"{5 + n % 9} lb {3 + n * 7 % 13} oz"),
            ("of grams", 1500.0, lambda n: f"1.{5 + n % 4} kg" if n % 3 == 0 else f"{n * 7 % 900 + 50} g"),
            ("of centimetres", 175.0, lambda n: f"1 m {75 + n % 20} cm"),
        )
    },
    # ---- limits of measurements
    **{
        f"limits such as {write(0)}": form(write, words, "in 12 of 60 cells", first=first)
        for words, first, write in (
            ("unit mg/L", 5.2, lambda n: f"{5.2 + n * 7 % 31:.1f} mg/L" if n % 5 else "<5.2 mg/L"),
            ("as 5", 1000.0, lambda n: f"{n * 7 % 310}" if n % 5 else ">1000"),
            ("it could also be 1.", 1000.0, lambda n: f"{n * 7 % 310}" if n % 5 else "> 1,000"),
            ("as 5", 0.5, lambda n: f"{n * 7 % 31 / 9:.2f}" if n % 5 else "≤ 0.5"),
            ("as 5", 90.0, lambda n: f"{n * 7 % 90}" if n % 5 else "90+"),
        )
    },
    **{
        f"classes such as {values[0]} are no limits": form(
            lambda n, values=values: values[n * 7 % len(values)], "v: category", kind="category"
        )
        for values in (("<30", ">=30"), ("< 1 year", "> 1 year"), ("<18", ">65"), ("<25K", "25K-50K", ">50K"))
    },
    "labels such as <=50K": Case(
        content=table({**TREES, "kind": cycle("<=50K", ">50K")}), expected=told(classes={"<=50K", ">50K"})
    ),
    # ---- the last column is called an identifier, but may be the label
    **{
        f"the last column is {name}": Case(
            content=table({"height": HEIGHT, "width": WIDTH, name: each(lambda n: str(n * 7 % 10))}),
            expected=told(
                f"'width' is predicted, but the last column is '{name}'",
                task=NUMBER,
                label="width",
                used=("height",),
                classes=set(),
                suggested=("label_column", name),
            ),
        )
        for name in ("class_id", "ID", "speciesId")
    },
    "the last column is an identifier, and a usual label is there": Case(
        content=table({"height": HEIGHT, "species": KIND, "visitor_id": each(lambda n: str(n * 7 % 10))}),
        expected=told(label="species", used=("height",)),
        silent=("the last column",),
    ),
    # ---- letters after numbers that are no magnitudes
    "age and sex": form(lambda n: f"{20 + n * 7 % 60}{'MF'[n % 2]}", "different units: F, M", kind="ignored"),
    "shoe sizes": form(lambda n: f"{n * 7 % 9 + 4}{'.5' * (n % 3 == 1)}{'MW'[n % 2]}", kind="category"),
    # ---- names that contain a word for phones
    **{
        f"numbers called {name}": form(write, name=name)
        for name, write in {
            "mobile_data": lambda n: f"{500 + n * 7 % 60}.4411",
            "Phone sales": lambda n: str(1_000_000 + n * 7919),
            "手机销售额": lambda n: str(5_000_000 + n * 7919),
        }.items()
    },
    **{
        f"phone: {name}": form(
            lambda n: str(5_550_000_000 + n // 2 * 7919), PHONE, kind="identifier", name=name
        )
        for name in ("phone", "Phone (home)", "Telefonnummer", "mobile_no", "Tel. privat", "手机号")
    },
    "feet and inches of two digits": form(
        lambda n: f"{5 + n % 2}'{(8 + n * 7) % 12:02}.5\"", "of inches", first=68.5
    ),
    # ---- separators that could be decimal marks: what the other reading gives
    **{
        f"could be {other}": form(write, f"it could also be {other}.")
        for other, write in {
            "1.1": lambda n: f"{n + 11 if n else 1}.{100 + n * 10} €",
            "1.25": lambda n: f"{n % 9 + 1},{250 + n} kg",
            "-1.205": lambda n: f"-$ {n % 9 + 1},{205 + n}",
        }.items()
    },
}


def make(case: Case, folder: Path) -> Path:
    """Write the file of a case."""
    path = folder / case.name
    if callable(case.content):
        case.content(path)
    else:
        path.write_bytes(case.content.encode(case.code) if isinstance(case.content, str) else case.content)
    return path


@pytest.mark.parametrize("name", CASES)
def test_variant_is_read_as_a_careful_analyst_reads_it(tmp_path: Path, name: str) -> None:
    check_case(CASES[name], tmp_path)


def check_case(case: Case, folder: Path) -> None:
    answer = inspected(make(case, folder), **case.options)
    check(answer, case.expected)
    columns = {each["name"]: each for each in answer["columns"]}
    words = said(answer)
    assert {name: columns[name]["type"] for name in case.kinds} == case.kinds, words
    assert {name: columns[name]["num_missing"] for name in case.missing} == case.missing, words
    preview = answer["preview"]
    for column, value in case.first.items():
        cell = preview["read_rows"][0][preview["header"].index(column)]
        assert (float(cell) if isinstance(value, float) else cell) == pytest.approx(value), words
    assert not any(each in words for each in case.silent), words


def put(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_no_click_leaves_out_all_classes(tmp_path: Path) -> None:
    answer = inspected(put(tmp_path, "a,b,kind\n1.5,2,x\n1.7,3,y\n"))
    assert "2 of 2 classes have 1 row" in said(answer)
    assert not any(each["suggested"] or each["action"] for each in answer["problems"])


@pytest.mark.parametrize(
    "names", [("", "width", "kind"), ("x" * 400, "width", "kind"), ("0", "1", "2"), ("2019", "2020", "2021")]
)
def test_odd_names_of_columns(tmp_path: Path, names: tuple[str, str, str]) -> None:
    answer = inspected(put(tmp_path, table(header=False, above=",".join(names) + "\n")))
    assert answer["ok"] and answer["preview"]["num_rows"] == NUM, said(answer)
    header = answer["preview"]["header"]
    assert len(set(header)) == 3 and all(0 < len(name) <= 200 for name in header)
    assert answer["preview"]["class_counts"] == dict.fromkeys(OAK, 20)


EMOJI = ("\u2764", "\u2764\ufe0f", "\U0001f622")
LABELS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "numbers": (("1", "1.0", "2", "2.0"), ("1", "2"), ""),
    "case": (("yes", "Yes", "no"), ("yes", "Yes", "no"), "join_labels"),
    "spaces around": ((" yes", "yes ", "no"), ("yes", "no"), ""),
    "no-break space": (("yes\u00a0", "yes", "no"), ("yes", "no"), ""),
    "emoji of both kinds": (EMOJI, EMOJI, "join_labels"),
    "invisible": (("ye\u200bs", "yes", "no"), ("ye\u200bs", "yes", "no"), "join_labels"),
    "wide letters": (("ｙｅｓ", "yes", "no"), ("ｙｅｓ", "yes", "no"), "join_labels"),
    "missing name": (("None", "apnea", "insomnia"), ("None", "apnea", "insomnia"), "label_missing"),
    "question mark": (("?", "a", "b"), ("?", "a", "b"), "label_missing"),
    "truth": (("true", "false"), ("true", "false"), ""),
    "grades": (("1", "2", "3", "4", "5"), ("1", "2", "3", "4", "5"), ""),
}


@pytest.mark.parametrize("name", LABELS)
def test_spellings_of_labels(tmp_path: Path, name: str) -> None:
    labels, classes, click = LABELS[name]
    answer = inspected(put(tmp_path, table({**TREES, "kind": cycle(*labels)})))
    check(answer, Reading(classes=set(classes), rows=NUM))
    suggested = [one["suggested"].get("data_reading", "") for one in answer["problems"]]
    assert any(click in one for one in suggested) if click else not any("label" in one for one in suggested)


def test_clicks_do_what_they_say(tmp_path: Path) -> None:
    path = put(tmp_path, table({**TREES, "kind": cycle("yes", "Yes", "no", "None")}))
    joined = inspected(path, reading='{"join_labels": true}')
    assert joined["preview"]["class_counts"] == {"None": 15, "no": 15, "Yes": 30}
    gone = inspected(path, reading='{"join_labels": true, "label_missing": true}')
    assert not gone["ok"] and gone["num_to_leave_out"] == 15
    left = inspected(path, reading='{"join_labels": true, "label_missing": true}', skip_unreadable=True)
    assert left["ok"] and left["preview"]["class_counts"] == {"no": 15, "Yes": 30}


def test_columns_are_overridden(tmp_path: Path) -> None:
    path = put(tmp_path, with_width(lambda n: grouped(n, ",")))
    for kind, words in (
        ("ignored", "ignored"),
        ("category", "category"),
        ("number, decimal comma", "number"),
    ):
        answer = inspected(path, reading=json.dumps({"columns": {"width": kind}}))
        column = answer["columns"][1]
        assert column["is_chosen"] and column["decision"].startswith(words), said(answer)
    check(inspected(path, reading='{"columns": {"width": "number"}}'), OAKS)
    answer = inspected(path, reading='{"columns": {"width": "colour"}}')
    assert not answer["ok"] and "allowed: " in said(answer)


def test_the_chosen_sheet_is_read_even_if_it_is_empty(tmp_path: Path) -> None:
    rows = [list(TREES), *map(list, zip(*TREES.values(), strict=True))]
    path = write_xlsx(tmp_path / "t.xlsx", rows, ("First", "Second", "Third"), empty=["Third"])
    check(inspected(path), told("the sheet 'First' is read"))
    check(inspected(path, reading='{"sheet": "Second"}'), told("the sheet 'Second' is read"))
    empty = inspected(path, reading='{"sheet": "Third"}')
    check(empty, refused("the file is empty", "the sheet 'Third' is read"))


def test_hidden_rows_and_formulas_without_values_are_reported(tmp_path: Path) -> None:
    rows = [[*TREES, "half"], *([*row, "0"] for row in zip(*TREES.values(), strict=True))]
    plain = write_xlsx(tmp_path / "plain.xlsx", rows)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / "t.xlsx", "w") as new:
        for name in old.namelist():
            text = old.read(name).replace(b"<v>0</v></c></row>", b"<f>A2/2</f></c></row>")
            text = text.replace(b"<c><f>", b'<c r="C2" t="str"><f>', 1)  # its value is an empty text
            new.writestr(name, text.replace(b"<row><c><v>5.25", b'<row r="2" hidden="1"><c><v>5.25'))
    check(
        inspected(tmp_path / "t.xlsx", label_column="kind"),
        told(f"{NUM - 1} formulas have no value", "1 rows of the"),
    )
    assert "hidden" not in said(inspected(plain, label_column="kind"))


def test_title_and_body_are_joined_by_a_click(tmp_path: Path) -> None:
    path = put(
        tmp_path, table({"title": each(lambda n: f"a short title of film {n}"), "body": FILM, "label": MOOD})
    )
    answer = inspected(path)
    assert "several columns hold texts" in said(answer)
    (click,) = [one for one in answer["problems"] if "data_reading" in one["suggested"]]
    joined = inspected(path, reading=click["suggested"]["data_reading"])
    assert [each["name"] for each in joined["columns"] if each["is_used"]] == ["title", "body", "label"]


FINDINGS = {
    "copies": ("3 of 63 rows are exact copies", table(below="".join(table().splitlines(keepends=True)[1:4]))),
    "outlier": ("far from the others", table(below="9999999,5,elm\n")),
    "sentinel": (
        "far from the others",
        lines(lambda n, line: f"-9999{line[line.index(',') :]}" if n % 20 == 3 else line),
    ),
    "total": ("looks like a total", table(below="1,2,Total\n")),
    "leak": (
        "it alone determines",
        table({**TREES, "width": each(lambda n: str(sorted(OAK).index(KIND[n]) * 1000 + n))}),
    ),
    "rare": ("class has 1 row", table(below="5.5,7,yew\n")),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_before_start(tmp_path: Path, name: str) -> None:
    words, text = FINDINGS[name]
    path = put(tmp_path, text)
    answer = inspected(path)
    (one,) = [one for one in answer["problems"] if words in one["message"]]
    assert one["suggested"] and one["action"], said(answer)
    used = inspected(path, reading=one["suggested"]["data_reading"])
    assert not any(words in each["message"] for each in used["problems"]), said(used)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of tables."""
    found: list[str] = []
    query = Table.query
    monkeypatch.setattr(Table, "query", lambda self, sql: found.append(sql) or query(self, sql))
    return found


def test_images_in_parquet_are_refused_without_reading_them(tmp_path: Path, asked: list[str]) -> None:
    path = tmp_path / "t.parquet"
    parquet("SELECT {'bytes': 'x'::BLOB, 'path': 'a.png'} AS image, i % 2 AS label FROM range(60) t(i)")(path)
    check(inspected(path), refused("its column 'image' holds images", "in a folder for each class"))
    assert asked and all(sql.startswith("DESCRIBE") for sql in asked)


SIDES = {  # sides, the one without labels, and the rows of training and validation; none: a fault names it
    "test": (("train", "train", "test"), "test", "validation"),
    "train": (("train", "val"), "train", "training"),
    "test beside validation": (("train", "val", "test"), "test", (20, 20)),
    "validation beside test": (("train", "val", "test"), "val", (20, 20)),
    "none": (("train", "train", "test"), "", (40, 20)),
}


@pytest.mark.parametrize("name", SIDES)
def test_a_side_of_the_split_without_labels(tmp_path: Path, name: str) -> None:
    sides, without, expected = SIDES[name]
    split = cycle(*sides)
    labels = [cell if side != without else "" for cell, side in zip(KIND, split, strict=True)]
    path = put(tmp_path, table({"height": HEIGHT, "kind": labels, "split": split}))
    options = {"label_column": "kind", "skip_unreadable": True}
    answer = inspected(path, **options)
    if isinstance(expected, tuple):
        assert answer["ok"], said(answer)
        assert tuple(map(len, own(path, **options).load(torch.device("cpu")))) == expected
        return
    assert not answer["ok"]
    (one,) = [one for one in answer["problems"] if f"rows for {expected}" in one["message"]]
    assert one["is_fatal"]
    assert inspected(path, reading=one["suggested"]["data_reading"], **options)["ok"]


def test_a_side_of_the_split_without_readable_rows(tmp_path: Path) -> None:
    split = cycle("train", "train", "train", "train", "test")
    width = [cell if side == "train" else f"near {cell}" for cell, side in zip(WIDTH, split, strict=True)]
    path = put(tmp_path, table({"split": split, "height": HEIGHT, "width": width, "kind": KIND}))
    with pytest.raises(DataError, match="no row for validation can be read"):
        own(path, skip_unreadable=True).load(torch.device("cpu"))


@pytest.mark.parametrize("task", ["tabular", "text"])
def test_the_split_of_a_column_is_kept(tmp_path: Path, task: str) -> None:
    side = cycle("train", "train", "train", "test", "unknown side")
    some = {"text": FILM, "label": MOOD} if task == "text" else {"height": HEIGHT, "label": KIND}
    path = put(tmp_path, table({**some, "split": [one if one in ("train", "test") else "" for one in side]}))
    data = own(path)
    train, validation = data.load(torch.device("cpu"))
    assert (len(train), len(validation)) == (36, 12)
    given = [place for place, one in enumerate(side) if one == "test"]
    wanted = sorted(some["label"][place] for place in given)
    names = data.spec().class_names
    targets = validation.targets_of(torch.arange(len(validation)))
    assert sorted(names[int(place)] for place in targets) == wanted
