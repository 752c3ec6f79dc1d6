"""Further table variants, each with the reading that a careful analyst expects."""

from __future__ import annotations

import bz2
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

import duckdb
import pytest
import torch

from tests.unit.own_files import (
    inspected,
    no_models,  # noqa: F401 - a fixture
    own,
    own_cache,  # noqa: F401 - a fixture
    write_xlsx,
)
from tests.unit.trainers.data.own.test_people_files import NUMBER, OAK, ROWS, TEXTS, Reading, check, said
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
CHINESE = each(lambda n: f"{('这个屏幕很好我很满意', '这个屏幕太差了我要退货')[n % 2]}第{n * 31 % 97}个")
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


def xlsx(*rows: Iterable[str], sheets: tuple[str, ...] = ("Sheet1",)) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_xlsx(path, [list(row) for row in rows], sheets)

    return write


def zipped(name: str, text: str | bytes, others: Mapping[str, str] | None = None) -> bytes:
    to = io.BytesIO()
    with zipfile.ZipFile(to, "w") as archive:
        for each_name, content in {name: text, **(others or {})}.items():
            archive.writestr(each_name, content)
    return to.getvalue()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file and its expected reading.

    Attributes:
        content: content of the file, or a function that writes it.
        options: options of the inspection.
        first: expected first cells, by column name.
        kinds: expected kinds of columns.
        missing: expected number of missing values, by column.
        silent: text that no message may contain.
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
JAPANESE = ("この映画はとても良かったです", "この映画は退屈でした")
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


CASES: dict[str, Case] = {
    # ---- encodings
    "cp1250 Polish": letters(("dąb", "świerk", "żółty buk"), "cp1250"),
    "cp1250 Czech": letters(("dub", "smrk ztepilý", "javor mléč"), "cp1250"),
    "cp1250 Hungarian": letters(("tölgy", "erdei fenyő", "bükk fűz"), "cp1250"),
    "iso-8859-2 Polish": letters(("dąb", "świerk", "żółty buk"), "iso8859_2"),
    "cp1254 Turkish": letters(("meşe", "çınar ağacı", "şimşir"), "cp1254"),
    "cp1252 French": letters(("chêne", "hêtre", "érable à sucre"), "cp1252"),
    "latin-1 Spanish": letters(("roble", "nogal pequeño", "álamo"), "latin-1"),
    "latin-1 Swedish": letters(("ek", "björk", "rönn på ön"), "latin-1"),
    "cp1251 Russian": letters(("дуб", "сосна", "берёза"), "cp1251"),
    "koi8-r Russian": letters(("Дуб", "Сосна", "Береза"), "koi8_r"),
    "cp1253 Greek": letters(("δρυς", "πεύκο", "οξιά"), "cp1253"),
    "gb18030 Chinese": letters(("橡树", "松树", "榆树"), "gb18030"),
    "big5 Chinese": letters(("橡樹", "松樹", "榆樹"), "big5"),
    "Shift-JIS Japanese": letters(("ナラの木", "マツの木", "ニレの木"), "shift_jis"),
    "euc-kr Korean": letters(("참나무", "소나무", "느릅나무"), "euc_kr"),
    "mac roman German": letters(("Eiche", "Föhre", "Bäume groß"), "mac_roman"),
    "utf-16-be with mark": Case(
        content="\ufeff" + table(sep="\t"), code="utf-16-be", expected=OAKS, first=W0
    ),
    "utf-16-le without mark": Case(content=table(sep="\t"), code="utf-16-le", expected=OAKS, first=W0),
    "utf-8 mark and quoted name": Case(content='\ufeff"height"' + table()[6:], expected=OAKS),
    "one broken byte": Case(
        content=table().encode().replace(b"oak", b"oak\xe4", 1),
        expected=told("class has 1 row", "not UTF-8", classes={*OAK, "oakä"}, is_faulty=True),
    ),
    # ---- delimiters
    "tabs in .csv": Case(content=table(sep="\t"), expected=OAKS, first=W0),
    "commas in .tsv": Case(content=table(), name="t.tsv", expected=OAKS, first=W0),
    "bars with spaces": Case(
        content=lines(lambda n, line: line.replace(",", " | ")), expected=OAKS, first=W0
    ),
    "aligned by spaces": Case(
        content=lines(lambda n, line: "".join(f"{c:<12}" for c in line.split(","))),
        name="t.txt",
        expected=OAKS,
        first=W0,
    ),
    "double colons": Case(
        content=lines(lambda n, line: line.replace(",", "::")), name="t.dat", expected=OAKS, first=W0
    ),
    "Markdown": Case(
        content=lines(
            lambda n, line: f"| {line.replace(',', ' | ')} |" + ("\n|---|---|---|" if not n else "")
        ),
        name="t.txt",
        expected=OAKS,
        first=W0,
    ),
    "semicolons and commas in texts": Case(
        content=table({"id": each(str), "text": FILM, "label": MOOD}, sep=";"),
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    "sep= and bars": Case(content="sep=|\n" + table(sep="|"), expected=OAKS, first=W0),
    # ---- numbers
    "Swiss francs": Case(
        content=with_width(lambda n: f"CHF {grouped(n, '’', 2)}"), expected=told("unit CHF"), first=W0
    ),
    "narrow spaces and euro after": Case(
        content=with_width(lambda n: grouped(n, "\u202f", 2, ",") + "\u00a0€", sep=";"),
        expected=told("unit €"),
        first=W0,
    ),
    "rupees": Case(
        content=with_width(lambda n: "₹" + indian(n)),
        expected=told("unit ₹", "commas between thousands"),
        first=W0,
    ),
    "rupees without sign": Case(
        content=with_width(indian), expected=told("commas between thousands"), first=W0
    ),
    "accounting": Case(
        content=with_width(lambda n: f"({grouped(n, ',', 2)})" if n % 2 else grouped(n, ",", 2)),
        expected=told("→"),
        first={"width": float(-WIDTHS[0] if WIDTHS[0] % 2 else WIDTHS[0])},
    ),
    "accounting with dollar": Case(
        content=with_width(lambda n: f"$({grouped(n, ',', 2)})"),
        expected=told("unit $"),
        first={"width": -float(WIDTHS[0])},
    ),
    "minus after": Case(
        content=with_width(lambda n: f"{n}-"), expected=OAKS, first={"width": -float(WIDTHS[0])}
    ),
    "percent and decimal comma": Case(
        content=with_width(lambda n: f"{n // 1000},5 %", sep=";"),
        expected=told("unit %"),
        first={"width": WIDTHS[0] // 1000 + 0.5},
    ),
    "some with a unit": Case(
        content=with_width(lambda n: f"{n} kg" if n % 2 else str(n)), expected=told("unit kg"), first=W0
    ),
    "two units": Case(
        content=with_width(lambda n: f"{n} kg" if n % 2 else f"{n} lb"),
        expected=told("different units", used=("height",)),
        kinds={"width": "ignored"},
    ),
    "unit and decimals": Case(
        content=with_width(lambda n: f"{n / 100:.2f}m"),
        expected=told("unit m"),
        first={"width": WIDTHS[0] / 100},
    ),
    "points between thousands, German": Case(
        content=table(
            {
                "height": [h.replace(".", ",") for h in HEIGHT],
                "width": each(lambda n: grouped(WIDTHS[n], ".")),
                "kind": KIND,
            },
            sep=";",
        ),
        expected=told("points between thousands"),
        first=W0,
    ),
    "thousands of three digits, German": Case(
        content=table(
            {
                "height": [h.replace(".", ",") for h in HEIGHT],
                "width": each(lambda n: f"{1 + n * 7 % 9}.{100 + n * 13 % 900}"),
                "kind": KIND,
            },
            sep=";",
        ),
        expected=told("points between thousands"),
        first={"width": 1100.0},
    ),
    "plain decimals of three digits": Case(
        content=table(
            {"height": HEIGHT, "width": each(lambda n: f"{1 + n * 7 % 9}.{100 + n * 13 % 900}"), "kind": KIND}
        ),
        expected=OAKS,
        first={"width": 1.1},
    ),
    "currency code after": Case(
        content=with_width(lambda n: f"{grouped(n, ',')} USD"), expected=told("unit USD"), first=W0
    ),
    "euro before, German": Case(
        content=with_width(lambda n: f"€{grouped(n, '.', 2, ',')}", sep=";"),
        expected=told("unit €"),
        first=W0,
    ),
    "ordinary spaces": Case(
        content=with_width(lambda n: grouped(n, " ", 2, ","), sep=";"),
        expected=told("spaces between"),
        first=W0,
    ),
    "approximately": Case(content=with_width(lambda n: f"~{n}"), expected=told("unit ~"), first=W0),
    "leading zeros": Case(
        content=with_width(lambda n: f"{n % 20:05}"),
        expected=told("leading zeros"),
        kinds={"width": "category"},
    ),
    "ranges": Case(
        content=table({"height": HEIGHT, "age": cycle("18-24", "25-34", "35-44"), "kind": KIND}),
        expected=told(used=("height", "age")),
        kinds={"age": "category"},
    ),
    "times of day": Case(
        content=table(
            {"height": HEIGHT, "at": each(lambda n: f"{n * 5 % 24:02}:{n * 7 % 60:02}"), "kind": KIND}
        ),
        expected=told("hours", used=("height", "at")),
        kinds={"at": "number"},
        first={"at": 0.0},
    ),
    "durations": Case(
        content=table({"height": HEIGHT, "at": each(lambda n: f"{n % 30}:{n * 7 % 60:02}:30"), "kind": KIND}),
        expected=told("hours", used=("height", "at")),
        kinds={"at": "number"},
        first={"at": 30 / 3600},
    ),
    "versions": Case(
        content=table({"height": HEIGHT, "version": cycle("1.2.3", "1.2.4", "1.3.0", "2.0.1"), "kind": KIND}),
        expected=told(used=("height", "version")),
        kinds={"version": "category"},
    ),
    # ---- missing values
    "many spellings": Case(
        content=table(
            {
                "height": [
                    c
                    if n % 6
                    else ("-", "n/a", "NA", "?", ".", "--", "nan", "#N/A", "keine Angabe", "")[n // 6]
                    for n, c in enumerate(HEIGHT)
                ],
                "width": WIDTH,
                "kind": KIND,
            }
        ),
        expected=told("missing"),
        kinds={"height": "number"},
        missing={"height": 10},
    ),
    "-999 in a tenth": Case(
        content=table(
            {
                "height": ["-999" if n % 10 == 3 else c for n, c in enumerate(HEIGHT)],
                "width": WIDTH,
                "kind": KIND,
            }
        ),
        expected=told("far from the others", suggested=("data_reading", "-999")),
    ),
    "-999 in a third": Case(
        content=table(
            {
                "height": ["-999" if n % 3 == 1 else c for n, c in enumerate(HEIGHT)],
                "width": WIDTH,
                "kind": cycle("oak", "fir", "elm", "yew"),
            }
        ),
        expected=told("far from the others", classes={*OAK, "yew"}, suggested=("data_reading", "-999")),
    ),
    "? in categories": Case(
        content=table({"job": cycle("clerk", "?", "cook", "smith", "baker"), **TREES}),
        expected=told("‘?’ means missing", used=("job", "height", "width")),
        missing={"job": 12},
    ),
    "German words": Case(
        content=table(
            {
                "height": ["k. A." if n % 7 == 2 else c.replace(".", ",") for n, c in enumerate(HEIGHT)],
                "width": WIDTH,
                "kind": KIND,
            },
            sep=";",
        ),
        expected=told("‘k. A.’ means missing"),
        missing={"height": 9},
    ),
    "own word for missing": Case(
        content=table(
            {
                "height": ["verweigert" if n % 7 == 2 else c for n, c in enumerate(HEIGHT)],
                "width": WIDTH,
                "kind": KIND,
            }
        ),
        expected=told("‘verweigert’ means missing"),
        missing={"height": 9},
    ),
    # ---- index and identifiers
    "index called #": Case(
        content=lines(lambda n, line: f"{'#' if not n else n * 37 % 61},{line}"),
        expected=told("row index, ignored"),
    ),
    "index called Zeile": Case(
        content=lines(lambda n, line: f"{n or 'Zeile'},{line}"),
        expected=told("row index, ignored"),
    ),
    "index in the last column": Case(
        content=lines(lambda n, line: f"{line},{n or 'lfd. Nr.'}"),
        expected=told("row index, ignored"),
    ),
    "shuffled index of any name": Case(
        content=lines(lambda n, line: f"{'case' if not n else n * 37 % 61},{line}"),
        expected=told("row index, ignored"),
    ),
    "uuid": Case(
        content=table({"key": each(lambda n: str(uuid.UUID(int=n * 7919**9))), **TREES}),
        expected=told("identifier, ignored"),
    ),
    "email": Case(
        content=table({"mail": each(lambda n: f"person{n}@example.org"), **TREES}),
        expected=told("identifier, ignored"),
    ),
    "prefix": Case(
        content=table({"case": each(lambda n: f"A-{1000 + n}"), **TREES}),
        expected=told("identifier, ignored"),
    ),
    "customer number": Case(
        content=table({"Kundennummer": each(lambda n: str(n * 7919 % 88_001 + 10_000)), **TREES}),
        expected=told("identifier, ignored"),
    ),
    "repeated patient": Case(
        content=table({"patient_id": each(lambda n: str(5000 + n // 3 * 17)), **TREES}),
        expected=told("called an identifier"),
    ),
    "id_ first": Case(
        content=table({"id_client": each(lambda n: str(n * 7919 % 88_001)), **TREES}),
        expected=told("identifier, ignored"),
    ),
    "text next to id": Case(
        content=table({"tweet_id": each(lambda n: str(10**17 + n * 7919)), "text": FILM, "label": MOOD}),
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    # ---- lines above and below, headers
    "title, empty line, units": Case(
        content="Trees of the park\n\n" + lines(lambda n, line: line + ("\n(m),(mm)," if not n else "")),
        expected=told("Trees of the park", "(m), (mm)"),
        first=W0,
    ),
    "two header rows": Case(content="size,,what\n" + table(), expected=told("size"), first=W0),
    "header in two languages": Case(
        content="Höhe,Breite,Art\n" + table(),
        expected=told(label="Art", used=("Höhe", "Breite")),
        first={"Breite": W0["width"]},
    ),
    "trailing delimiter in rows only": Case(
        content=lines(lambda n, line: line + ("," if n else "")), expected=OAKS, first=W0
    ),
    "line end in a name": Case(
        content='"height\n(m)",width,kind\n' + table().split("\n", 1)[1],
        expected=told(used=("height (m)", "width")),
        first=W0,
    ),
    "total général": Case(
        content=table(below="Total général,9,\n"), expected=told("Total général, 9'. It is left out")
    ),
    "Summe": Case(
        content=table(
            {"kind": KIND, "height": HEIGHT, "width": WIDTH},
            below=f"Summe,{sum(HEIGHTS):.2f},{sum(WIDTHS)}\n",
        ),
        options={"label_column": "width"},
        expected=told(
            "looks like a total",
            rows=61,
            task=NUMBER,
            label="width",
            used=("kind", "height"),
            classes=set(),
            suggested=("data_reading", "leave_out_last"),
        ),
    ),
    "合計": Case(
        content=table({"kind": KIND, "height": HEIGHT, "width": WIDTH}, below=f"合計,1,{sum(WIDTHS)}\n"),
        expected=told(
            "looks like a total",
            rows=61,
            task=NUMBER,
            label="width",
            used=("kind", "height"),
            classes=set(),
            suggested=("data_reading", "leave_out_last"),
        ),
    ),
    "footer": Case(
        content=table(below="Source: Forest Service 2024\n"), expected=told("Source: Forest Service")
    ),
    "footer with empty cells": Case(
        content=table(below=",,\nSource: Forest Service 2024,,\n"), expected=told("Source: Forest Service")
    ),
    "count of rows": Case(content=table(below=f"({NUM} rows)\n"), expected=told(f"({NUM} rows)")),
    "header again in the middle": Case(
        content=table().replace("\n", "\n", 1)
        + "height,width,kind\n"
        + table({**TREES, "width": each(lambda n: str(WIDTHS[n] + 1))}, header=False),
        expected=told("column names again", rows=2 * NUM),
        first=W0,
    ),
    "comments between rows": Case(
        content=lines(lambda n, line: line + ("\n# next part" if n == 20 else "")), expected=OAKS, first=W0
    ),
    "empty columns": Case(
        content=lines(lambda n, line: line.replace(",", ",,", 1) + ",,"),
        expected=told("empty, ignored"),
        first=W0,
    ),
    "double names": Case(
        content=table(header=False, above="size,size,kind\n"), expected=told(used=("size", "size (2)"))
    ),
    "no header": Case(content=table(header=False), expected=NAMELESS),
    "no header, label first": Case(
        content=table({"kind": KIND, "h": HEIGHT, "w": WIDTH}, header=False),
        expected=told(
            "no line with column names",
            task=NUMBER,
            label="column 3",
            used=("column 1", "column 2"),
            classes=set(),
        ),
    ),
    "quoted line ends": Case(
        content=table({"text": [f"{c}\nand\r\nmore" for c in FILM], "label": MOOD}, end="\r\n"),
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    "old Mac line ends": Case(content=table(end="\r"), expected=OAKS, first=W0),
    "escaped quotes": Case(
        content=lines(lambda n, line: line + (',"a \\"quoted\\", word"' if n else ",note")),
        expected=told("constant", label="kind"),
        options={"label_column": "kind"},
    ),
    "decimal commas without quotes": Case(
        content="height,width,kind\n"
        + "".join(f"{HEIGHT[n].replace('.', ',')},{WIDTHS[n]},{KIND[n]}\n" for n in range(NUM)),
        expected=told(
            "has 3 cells and the rows have 4: quote cells",
            label="column 4",
            used=("column 2", "column 3"),
        ),
    ),
    # ---- dates
    "ISO": dates(lambda d: d.strftime("%Y-%m-%d")),
    "German": dates(lambda d: d.strftime("%d.%m.%Y")),
    "German with one digit": dates(lambda d: f"{d.day}.{d.month}.{d.year}"),
    "American": dates(lambda d: f"{d.month}/{d.day}/{d.year}"),
    "British with time": dates(lambda d: d.strftime("%d/%m/%Y %H:%M")),
    "ISO with T and zone": dates(lambda d: d.strftime("%Y-%m-%dT%H:%M:%S.123456+01:00")),
    "AM and PM": dates(lambda d: d.strftime("%m/%d/%Y %I:%M:%S %p")),
    "month in words": dates(lambda d: d.strftime("%d-%b-%Y")),
    "weekday and month in words": dates(lambda d: d.strftime("%a, %d %b %Y %H:%M:%S")),
    "two digits": dates(lambda d: d.strftime("%d.%m.%y")),
    "compact": Case(
        content=table({"date": [d.strftime("%Y%m%d") for d in WHEN], **TREES}),
        expected=told("date", used=("date", "height", "width")),
        kinds={"date": "date"},
    ),
    "Chinese": dates(lambda d: d.strftime("%Y年%m月%d日")),
    "dates with gaps": Case(
        content=table(
            {"when": ["-" if n % 9 == 4 else f"{d:%Y-%m-%d}" for n, d in enumerate(WHEN)], **TREES}
        ),
        expected=told(used=("when", "height", "width")),
        kinds={"when": "date"},
        missing={"when": 7},
    ),
    # ---- labels
    "truth in German": Case(
        content=table(
            {"height": HEIGHT, "raucher": cycle("ja", "nein"), "krank": cycle("wahr", "falsch", "falsch")}
        ),
        expected=told(label="krank", used=("height", "raucher"), classes={"wahr", "falsch"}),
    ),
    "label first": Case(
        content=table({"target": KIND, "height": HEIGHT, "width": WIDTH}), expected=told(label="target")
    ),
    **{
        f"{name} in the middle": Case(
            content=table({"height": HEIGHT, name: KIND, "width": WIDTH}),
            expected=told(label=name, used=("height", "width")),
        )
        for name in ("Zielvariable", "étiquette", "标签", "ラベル")
    },
    **{
        f"{name}, which may be the label": Case(
            content=table({"height": HEIGHT, name: KIND, "width": WIDTH}),
            expected=told(
                f"also a column '{name}'",
                task=NUMBER,
                label="width",
                used=("height", name),
                classes=set(),
                suggested=("label_column", name),
            ),
        )
        for name in ("Klasse", "Ziel", "clase", "类别")
    },
    "word among columns without names": Case(
        content=table({"height": HEIGHT, "kind": KIND, "width": WIDTH}, header=False),
        expected=told(
            "also a column 'column 2'",
            task=NUMBER,
            label="column 3",
            used=("column 1", "column 2"),
            classes=set(),
            suggested=("label_column", "column 2"),
        ),
    ),
    "names of persons in a table": Case(
        content=table(
            {
                "survived": cycle("0", "1"),
                "name": each(lambda n: f"Braund, Mr. Owen H{n}"),
                "sex": cycle("m", "f"),
                "age": HEIGHT,
                "fare": WIDTH,
                "port": KIND,
            }
        ),
        expected=told("it holds texts", label="port", used=("survived", "sex", "age", "fare")),
    ),
    "zero with a decimal comma as label": Case(
        content=table({"height": HEIGHT, "label": cycle("0", "0,0", "1")}, sep=";"),
        expected=told(label="label", used=("height",), classes={"0", "1"}),
    ),
    "one label in several columns": Case(
        content=table(
            {"height": HEIGHT, **{f"is {k}": [str(int(each == k)) for each in KIND] for k in sorted(OAK)}}
        ),
        expected=told(
            "are one label in several columns",
            label="is oak",
            classes=set("01"),
            used=("height", "is elm", "is fir"),
            suggested=("data_reading", "is elm"),
        ),
    ),
    "several labels in a cell": Case(
        content=table(
            {"height": HEIGHT, "width": WIDTH, "kind": cycle("war", "war|love", "love|spy", "spy|war", "spy")}
        ),
        expected=told("cells hold several labels", classes={"war", "war|love", "love|spy", "spy|war", "spy"}),
    ),
    "values that differ in case": Case(
        content=table({"city": cycle("Ulm", "ulm", "Bonn"), **TREES}),
        expected=told("values differ in case", used=("city", "height", "width")),
    ),
    "nearly always one class": Case(
        content=table({**TREES, "kind": each(lambda n: "elm" if n in (7, 50) else "oak")}),
        expected=told("97% of the rows are of the class 'oak'", classes={"elm", "oak"}),
    ),
    "Survived first": Case(
        content=table(
            {
                "PassengerId": each(lambda n: str(n + 1)),
                "Survived": cycle("0", "1"),
                "Age": HEIGHT,
                "Embarked": KIND,
            }
        ),
        expected=told(
            "also a column 'Survived'",
            label="Embarked",
            used=("Survived", "Age"),
            suggested=("label_column", "Survived"),
        ),
    ),
    "quality 3 to 8": Case(
        content=table(
            {"height": HEIGHT, "width": WIDTH, "quality": cycle("3", "4", "5", "6", "7", "8")}, sep=";"
        ),
        expected=told(label="quality", classes=set("345678")),
    ),
    "29 ages": Case(
        content=table({"height": HEIGHT, "width": WIDTH, "rings": each(lambda n: str(1 + n * 7 % 29))}),
        expected=told(task=NUMBER, label="rings", classes=set()),
    ),
    "classes as floats": Case(
        content=table({"height": HEIGHT, "width": WIDTH, "class": cycle("1.0", "2.0", "3.0")}),
        expected=told(label="class", classes=set("123")),
    ),
    "case, space, invisible": Case(
        content=table(
            {"height": HEIGHT, "width": WIDTH, "kind": cycle("oak", "Oak", "oak\u200b", "elm", "e\u00adlm")}
        ),
        expected=told(
            "differ in case, spaces or invisible",
            classes={"oak", "Oak", "elm", "e\u00adlm"} | {"oak\u200b"} - {"oak\u200b"},
            suggested=("data_reading", "join_labels"),
        ),
    ),
    # ---- texts
    "title and body": Case(
        content=table({"title": each(lambda n: f"a short title of film {n}"), "body": FILM, "label": MOOD}),
        expected=Reading(
            task=TEXTS,
            label="label",
            used=("body",),
            classes={"good", "bad"},
            rows=NUM,
            told=("several columns hold texts",),
            suggested=("data_reading", '"title", "body"'),
        ),
    ),
    "text and score": Case(
        content=table({"text": FILM, "score": HEIGHT}),
        expected=refused("cannot be predicted from texts here"),
    ),
    "text and stars": Case(
        content=table({"text": FILM, "stars": cycle("1", "2", "3", "4", "5")}),
        expected=Reading(task=TEXTS, label="stars", used=("text",), classes=set("12345"), rows=NUM),
    ),
    "Chinese with id": Case(
        content=table({"编号": each(lambda n: str(900 + 3 * n)), "评论": CHINESE, "情感": MOOD}),
        expected=Reading(task=TEXTS, label="情感", used=("评论",), classes={"good", "bad"}, rows=NUM),
    ),
    "Chinese in gb18030": Case(
        content=table({"评论": CHINESE, "情感": cycle("正面", "负面")}),
        code="gb18030",
        expected=Reading(task=TEXTS, label="情感", used=("评论",), classes={"正面", "负面"}, rows=NUM),
    ),
    "Japanese in Shift-JIS": Case(
        content=table(
            {
                "文": each(lambda n: JAPANESE[n % 2] + str(n * 31 % 97)),
                "評価": cycle("良い", "悪い"),
            }
        ),
        code="shift_jis",
        expected=Reading(task=TEXTS, label="評価", used=("文",), classes={"良い", "悪い"}, rows=NUM),
    ),
    # ---- other files
    "JSON Lines": Case(
        name="t.jsonl",
        content="".join(
            json.dumps({"height": HEIGHTS[n], "width": WIDTHS[n], "kind": KIND[n]}) + "\n" for n in range(NUM)
        ),
        expected=OAKS,
        first=W0,
    ),
    "nested JSON Lines": Case(
        name="t.jsonl",
        content="".join(
            json.dumps({"height": HEIGHTS[n], "width": WIDTHS[n], "meta": {"a": n}, "kind": KIND[n]}) + "\n"
            for n in range(NUM)
        ),
        expected=told("lists or objects. It is left out"),
        first=W0,
    ),
    "JSON Lines with gaps": Case(
        name="t.ndjson",
        content="".join(
            json.dumps(
                {"height": HEIGHTS[n], **({} if n % 5 == 1 else {"width": WIDTHS[n]}), "kind": KIND[n]}
            )
            + "\n"
            for n in range(NUM)
        ),
        expected=told("missing"),
        missing={"width": 12},
    ),
    "JSON array": Case(
        name="t.json",
        content=json.dumps([{"height": HEIGHTS[n], "width": WIDTHS[n], "kind": KIND[n]} for n in range(NUM)]),
        expected=OAKS,
        first=W0,
    ),
    "JSON of columns": Case(
        name="t.json",
        content=json.dumps({name: {str(n): c for n, c in enumerate(cells)} for name, cells in TREES.items()}),
        expected=OAKS,
        first=W0,
    ),
    "JSON of lists": Case(name="t.json", content=json.dumps(TREES), expected=OAKS, first=W0),
    "JSON with columns and data": Case(
        name="t.json",
        content=json.dumps({"columns": list(TREES), "data": list(zip(*TREES.values(), strict=True))}),
        expected=OAKS,
        first=W0,
    ),
    "JSON by row name": Case(
        name="t.json",
        content=json.dumps({f"tree {n}": {name: c[n] for name, c in TREES.items()} for n in range(NUM)}),
        expected=OAKS,
        first=W0,
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
    "spreadsheet with title": Case(
        name="t.xlsx",
        content=xlsx(
            ["Trees of the park", "", ""], [], *zip(*[[k, *c] for k, c in TREES.items()], strict=True)
        ),
        expected=told("Trees of the park"),
        first=W0,
    ),
    "numbers as text in a spreadsheet": Case(
        name="t.xlsx",
        content=xlsx(
            ["height", "width", "kind"],
            *zip(HEIGHT, each(lambda n: grouped(WIDTHS[n], ",")), KIND, strict=True),
        ),
        expected=told("commas between thousands"),
        first=W0,
    ),
    "several sheets": Case(
        name="t.xlsx",
        content=xlsx(*zip(*[[k, *c] for k, c in TREES.items()], strict=True), sheets=("Data", "Notes")),
        expected=told("there are also 'Notes'", suggested=("data_reading", "Notes")),
        first=W0,
    ),
    "web page called .xls": Case(
        name="t.xls",
        content="<html><table><tr><td>1</td></tr></table></html>",
        expected=refused("a web page or XML by its beginning"),
    ),
}


def plain(
    content: str | bytes, *words: str, name: str = "t.csv", code: str = "utf-8", **changes: object
) -> Case:
    """Return a case with the table of trees in another format."""
    return Case(content=content, name=name, code=code, expected=told(*words, **changes), first=W0)


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
    "1'234": lambda n: grouped(n, "'"),
    "1’234": lambda n: grouped(n, "’"),
    "1,234.00": lambda n: grouped(n, ",", 2),
    "1.234,00": lambda n: grouped(n, ".", 2, ","),
    "1'234.00": lambda n: grouped(n, "'", 2),
    "1234,00": lambda n: f"{n},00",
    "$ 1,234.00": lambda n: "$ " + grouped(n, ",", 2),
    "1.234,00 €": lambda n: grouped(n, ".", 2, ",") + " €",
    "R$ 1.234,00": lambda n: "R$ " + grouped(n, ".", 2, ","),
    "US$": lambda n: f"US$ {n:,}",
    "EUR 1234": lambda n: f"EUR {n}",
    "Rs. 1234": lambda n: f"Rs. {n}",
    "1 234,00 Kč": lambda n: grouped(n, "\u00a0", 2, ",") + " Kč",
    "1,234円": lambda n: f"{n:,}円",
    "12kg": lambda n: f"{n}kg",
    "12 %": lambda n: f"{n} %",
    "12°C": lambda n: f"{n}°C",
    "+12": lambda n: f"+{n}",
    "1,234+": lambda n: f"{n:,}+",
    "1.2e3": lambda n: f"{n:.10e}",
    "'12": lambda n: f"'{n}",
    "full-width": lambda n: str(n).translate(WIDE),
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


def no_number(name: str, write: Callable[[int], str], kind: str, *words: str) -> Case:
    used = ("height", "width", *[name] * (kind == "category"))
    content = table({"height": HEIGHT, "width": WIDTH, name: each(write), "kind": KIND})
    return Case(content=content, expected=told(*words, used=used), kinds={name: kind})


PHONE = "identifier, ignored: phone numbers"
CASES |= {
    "phone: +49": no_number(
        "contact", lambda n: f"+49 {30 + n % 7} {n * 7919 % 10**7:07}", "identifier", PHONE
    ),
    "phone: repeated": no_number("contact", lambda n: f"+49 30 {n % 9:07}", "identifier", PHONE),
    "phone: (555)": no_number(
        "contact",
        lambda n: f"({200 + n * 7 % 700}) {100 + n * 13 % 900}-{n * 7919 % 10000:04}",
        "identifier",
        PHONE,
    ),
    "phone: French": no_number(
        "contact", lambda n: f"0{1 + n % 5} {n + 10} {n + 11} {n + 12} {n + 13}", "identifier", PHONE
    ),
    "phone: German": no_number(
        "contact", lambda n: f"0{30 + n % 5}/{n * 7919 % 10**7:07}", "identifier", PHONE
    ),
    "phone: digits": no_number("phone", lambda n: str(5_550_000_000 + n // 2 * 7919), "identifier", PHONE),
    "phone: plus and digits": no_number("Handy", lambda n: f"+4917{n // 2 * 7919:08}", "identifier", PHONE),
    "postcode": no_number("PLZ", lambda n: str(10_000 + n * 7 % 10 * 111), "category", "postcodes"),
    "IBAN": no_number("iban", lambda n: f"DE{10 + n} 5001 0517 {n * 7919:06} {n}", "identifier"),
    "JSON in cells": no_number("meta", lambda n: json.dumps({"a": n, "b": [1, 2]}), "identifier"),
    "decimal marks mixed": no_number(
        "share", lambda n: f"{n}{',.'[n % 2]}{n % 90 + 10}", "ignored", "some with a decimal comma"
    ),
    "two currencies": no_number(
        "price", lambda n: f"{'$€'[n % 2]}{n * 31}", "ignored", "different units: $, €"
    ),
}

# ---- missing values
MISSING = [
    "",
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "NaN",
    "nan",
    "NULL",
    "null",
    "None",
    "-",
    "--",
    "—",
    "?",
    ".",
    "unknown",
    "Unknown",
    "missing",
    "k.A.",
    "n.a.",
    "(null)",
    "\\N",
    "<NA>",
    "NaT",
    "#DIV/0!",
    "#NV",
    "n/d",
    "未知",
    "*",
    "refused",
]
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
    "title": plain("Bäume im Park\n" + TEXT, "Bäume im Park"),
    "title and empty line": plain("Bäume im Park\n\n" + TEXT, "Bäume im Park"),
    "title with empty cells": plain("Bäume im Park,,\n" + TEXT),
    "comments above": plain("# a comment\n# and another, with comma\n" + TEXT, "a comment"),
    "title, groups, names, units": plain(
        "Trees,,\nsize,,what\n" + lines(lambda n, line: line + "\n(m),(mm),-" * (not n)), "Trees", "(m), (mm)"
    ),
    "three header rows of Orange": plain(
        lines(lambda n, line: line + "\ncontinuous,continuous,discrete\n,,class" * (not n)), "continuous"
    ),
    "types below the names": plain(
        lines(lambda n, line: line + "\nfloat,int,str" * (not n)), "float, int, str"
    ),
    "names in a comment": plain("# " + TEXT),
    "names in a comment, spaces": plain("# " + TEXT.replace(",", " "), name="t.dat"),
    "names with other delimiter": plain(TEXT.replace(",", ";", 2)),
    "names and values above": plain("Exported by,Ann\nDate,2024-01-05\n\n" + TEXT, "Exported by"),
    "empty lines": plain("\n\n" + TEXT.replace("\n", "\n\n")),
    "trailing delimiter": plain(TEXT.replace("\n", ",\n")),
    "trailing delimiter in the header": plain(TEXT.replace("\n", ",\n", 1)),
    "leading delimiter": plain(lines(lambda n, line: "," + line), "empty, ignored"),
    "many trailing delimiters": plain(
        lines(lambda n, line: line.replace(",", ";") + ";;;"), "empty, ignored"
    ),
    "all quoted": plain(joined(",")),
    "space before quotes": plain(joined(", ")),
    "single quotes": plain(joined(",").replace('"', "'")),
    "some quoted": plain(
        lines(lambda n, line: ",".join(QUOTED[n][:2] + line.split(",")[2:]) if n % 2 else line)
    ),
    "lines in quotes": plain(lines(lambda n, line: f'"{line}"')),
    "lines of quoted cells in quotes": plain(
        lines(lambda n, line: '"' + ",".join(QUOTED[n]).replace('"', '""') + '"')
    ),
    "formulas of Excel": plain(
        lines(lambda n, line: f'="{line.split(",")[0]}",{line.split(",", 1)[1]}' if n else line)
    ),
    "spaces around": plain(TEXT.replace(",", " , ")),
    "no-break spaces around": plain(TEXT.replace(",", "\u00a0,\u00a0")),
    "CR LF": plain(TEXT.replace("\n", "\r\n")),
    "CR CR LF": plain(TEXT.replace("\n", "\r\r\n")),
    "mixed line ends": plain(TEXT.replace("\n", "\r\n", 20)),
    "no line end": plain(TEXT.rstrip("\n")),
    "two or more spaces": plain(
        lines(lambda n, line: "".join(f"{c:<14}" for c in line.replace("oak", "red oak").split(","))),
        name="t.txt",
        classes={"red oak", "fir", "elm"},
    ),
    "unit separators": plain(TEXT.replace(",", "\x1f")),
    "cp1252 and tildes": plain(
        TEXT.replace(",", "~").replace("oak", "Föhre"), code="cp1252", classes={"Föhre", "fir", "elm"}
    ),
    "utf-16, semicolons, lines in cells": plain(
        "\ufeff" + table({"note": each(lambda n: f"a\nb;{n % 3}"), **TREES}, sep=";", end="\r\n"),
        code="utf-16-le",
        used=("note", "height", "width"),
    ),
    "means below": plain(TEXT + "Mean,3.5,\nStd,1.2,\n", "Mean, 3.5 / Std, 1.2"),
    "two lines below": plain(TEXT + "\nGenerated: 2024-01-01 by Ann\nPage 1 of 1\n", "Page 1 of 1"),
    "row names": plain(lines(lambda n, line: f'"{n}",{line}' if n else line), "row names"),
    "nameless index": plain(first_column(lambda n: str(n * 37 % 61) if n else ""), "row index"),
    "Unnamed: 0": plain(first_column(lambda n: str(n - 1) if n else "Unnamed: 0"), "row index"),
    "index of floats": plain(first_column(lambda n: f"{n}.0" if n else "Row ID"), "row index"),
    "two indexes": plain(
        lines(lambda n, line: f"{n - 1},{n - 1},{line}" if n else f"Unnamed: 0.1,Unnamed: 0,{line}"),
        "row index",
    ),
    "addresses": plain(first_column(lambda n: f"https://example.org/{n}" if n else "url"), "identifier"),
    "country": plain(first_column(lambda n: "DE" if n else "country"), "constant"),
    **{
        f"suffix {suffix}": plain(table(sep=sep), name=f"t{suffix}")
        for suffix, sep in {
            ".txt": ",",
            ".dat": "\t",
            ".data": ";",
            "": ",",
            ".tsv": ";",
            ".tab": ",",
            ".xls": "\t",
            ".xlsx": ",",
        }.items()
    },
}

# ---- a column that defines the split
CASES |= {
    "split": plain(
        table({**TREES, "split": cycle("train", "train", "train", "test")}),
        "45 rows (train) are for training",
    ),
    "Usage": Case(
        content=table({**TREES, "Usage": cycle("Training", "Training", "PublicTest", "PrivateTest")}),
        expected=told("30 rows (Training) are for training, 30 rows (PrivateTest, PublicTest) for"),
        kinds={"Usage": "split"},
    ),
    "split of texts": Case(
        content=table({"text": FILM, "label": MOOD, "set": cycle("train", "train", "val", "test", "train")}),
        expected=Reading(
            task=TEXTS,
            label="label",
            used=("text",),
            classes={"good", "bad"},
            rows=NUM,
            told=("36 rows (train) are for training, 12 rows (val) for validation, 12 rows (test) are not",),
        ),
    ),
    "train is no split": Case(
        content=table({**TREES, "way": cycle("train", "bus", "car"), "kind": KIND}),
        expected=told(label="way", used=("height", "width", "kind"), classes={"train", "bus", "car"}),
    ),
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


def libsvm(name: str, content: str | bytes = LIBSVM) -> Case:
    return Case(content=content, name=name, expected=SIGNS, first={"3": float(WIDTHS[0])})


def is_refused(name: str, content: str | bytes, *words: str) -> Case:
    return Case(content=content, name=name, expected=refused(*words))


CASES |= {
    "LibSVM without suffix": libsvm("heart_scale"),
    "LibSVM called .csv": libsvm("t.csv"),
    "LibSVM in bz2": libsvm("t.bz2", bz2.compress(LIBSVM.encode())),
    "LibSVM with queries": Case(
        content="".join(
            f"{HEIGHTS[n]} qid:{n // 5} 1:{WIDTHS[n]} 2:{n * 31 % 17} # {n}\n" for n in range(NUM)
        ),
        name="t.svm",
        expected=told("read as LibSVM", task=NUMBER, label="label", used=("1", "2"), classes=set()),
        kinds={"query id": "identifier"},
    ),
    "LibSVM with several labels": is_refused(
        "t.svm", LIBSVM.replace("+1 ", "1,2 "), "LibSVM file with several labels"
    ),
    "ARFF": Case(
        content=ARFF + table(header=False),
        name="t.arff",
        expected=told("read as ARFF", used=("height", "the width")),
    ),
    "sparse ARFF": Case(
        content=ARFF
        + "".join(
            f"{{0 {HEIGHT[n]}, 1 {WIDTH[n]}{f', 2 {KIND[n]}' * (KIND[n] != 'oak')}}}\n" for n in range(NUM)
        ),
        name="t.arff",
        expected=told("read as ARFF", used=("height", "the width")),
        first={"the width": float(WIDTHS[0]), "kind": "oak"},
    ),
    "fastText": Case(
        content="".join(f"__label__{MOOD[n]} {FILM[n]}\n" for n in range(NUM)),
        name="t.txt",
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    "Vowpal Wabbit": is_refused(
        "t.vw", "".join(f"{n % 2} |f a:{n} b:{n * 7}\n" for n in range(NUM)), "Vowpal Wabbit"
    ),
    "NumPy": is_refused("t.npy", b"\x93NUMPY\1\0" + bytes(90), "a NumPy array"),
    "NumPy in a zip": is_refused("t.npz", zipped("a.npy", b"\x93NUMPY\1\0"), "is not read"),
    "SQLite": is_refused("t.db", b"SQLite format 3\0" + bytes(90), "an SQLite database"),
    "pickle": is_refused("t.pkl", b"\x80\4\x95" + bytes(90), "a Python pickle"),
    "HDF5": is_refused("t.h5", b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file"),
    "Stata": is_refused("t.dta", b"<stata_dta><header>" + bytes(90), "a Stata file"),
    "SPSS": is_refused("t.sav", b"$FL2@(#)" + bytes(90), "an SPSS file"),
    "MATLAB": is_refused("t.mat", b"MATLAB 5.0 MAT-file" + bytes(90), "a MATLAB file"),
    "Feather": is_refused("t.feather", b"ARROW1\0\0" + bytes(90), "an Arrow or Feather file"),
    "IDX": is_refused("t-idx3-ubyte", b"\0\0\x08\3" + bytes(90), "an IDX file"),
    "JSON Lines of lists": is_refused("t.jsonl", "[1, 2]\n" * 9, "lists or single values, not objects"),
}

# ---- compressed
PACKED = TEXT.encode()
CASES |= {
    "gzip": plain(gzip.compress(PACKED), name="t.csv.gz"),
    "bzip2": plain(bz2.compress(PACKED), name="t.csv.bz2"),
    "xz": plain(lzma.compress(PACKED), name="t.csv.xz"),
    "gzip called .csv": plain(gzip.compress(PACKED)),
    "zip of one table": plain(zipped("t.csv", TEXT), name="t.zip"),
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
    "gzip in a zip": is_refused("t.zip", zipped("a.csv.gz", gzip.compress(PACKED)), "compressed twice"),
    "gzip cut off": is_refused("t.csv.gz", gzip.compress(PACKED)[:300], "it cannot be unpacked"),
    "gzip in name only": is_refused("t.csv.gz", TEXT, "does not begin like a file ending in .gz"),
    "gzip bomb": is_refused("t.csv.gz", gzip.compress(b"1,2,a\n" * 5_000_000), "grows more than 100-fold"),
    "gzip of a gzip": is_refused("t.csv.gz", gzip.compress(gzip.compress(PACKED)), "compressed twice"),
    "tar": is_refused("t.tar.gz", gzip.compress(bytes(900)), "Unpack it and give the folder"),
    "Zstandard": is_refused("t.csv.zst", b"\x28\xb5\x2f\xfd" + bytes(90), "Unpack it"),
}

DECIMALS = ("1,0", "1,3", "1,7", "2,0", "2,3", "2,7")


def form(write: Callable[[int], str], *words: str, first: float | None = None, kind: str = "number") -> Case:
    used = ("height", "v", "width") if kind in ("number", "coordinates", "category") else ("height", "width")
    content = table({"height": HEIGHT, "v": each(write), "width": WIDTH, "kind": KIND})
    return Case(content=content, expected=told(*words, used=used), kinds={"v": kind},
                first={} if first is None else {"v": first})  # fmt: skip


CASES |= {
    "uncertainty": form(
        lambda n: f"{12 + n * 7 % 31} ± {n % 5}", "without its uncertainty: 12 ± 3 is read as 12", first=12.0
    ),
    "uncertainty and unit": form(
        lambda n: f"{12 + n * 7 % 31}.5 +/- {n % 5} kg", "without its uncertainty", "unit kg", first=12.5
    ),
    "feet and inches": form(
        lambda n: f"{5 + n % 2}'{(11 + n * 7) % 12}\"", "5'11\" is read as 71", first=71.0
    ),
    "feet in words": form(lambda n: f"{5 + n % 2} ft {n * 7 % 12} in", "of inches", first=60.0),
    "feet with typographic signs": form(lambda n: f"{5 + n % 2}′ {n * 7 % 12}″", "of inches", first=60.0),
    "fractions": form(
        lambda n: ("1/8", "1/4", "3/8", "1 1/2", "2")[n * 7 % 5], "1/8 is read as 0.125", first=0.125
    ),
    "coordinates": form(
        lambda n: f"{52 + n * 7 % 31 / 100:.3f}, {13 + n * 11 % 37 / 100:.3f}",
        "becomes two numbers",
        kind="coordinates",
    ),
    "coordinates in brackets": form(
        lambda n: f"({52 + n * 7 % 31 / 100:.3f} {-n * 11 % 37 / 100:.3f})",
        "becomes two numbers",
        kind="coordinates",
    ),
    "blood pressure": form(
        lambda n: f"{100 + n * 7 % 60}/{60 + n * 11 % 37}", "identifier, ignored", kind="identifier"
    ),
    "apostrophes between thousands": form(lambda n: f"1'{266 + n}", "apostrophes", first=1266.0),
    "totals with fewer cells": Case(
        content=table(below="Total,1234\n"), expected=told("'Total, 1234'. It is")
    ),
    "source with commas": Case(
        content=table(below="\nSource: Smith, J. (2020), Berlin\n"),
        expected=told("'Source: Smith, J. (2020), Berlin'. It is left out"),
    ),
    "a second table": Case(
        content=table(below="\nspecies,count\noak,20\nfir,20\nelm,20\n"),
        expected=refused("A second table may begin in line 63, with 2 columns: move it to a file of its own"),
    ),
    "short row": Case(
        content=table(below="5,oak\n" + "\n".join(table().splitlines()[1:5]) + "\n"),
        expected=refused("line 62 has 2", "a cell without a value still needs its delimiter"),
    ),
    "long row": Case(
        content=table(below="5,6,7,oak\n" + "\n".join(table().splitlines()[1:5]) + "\n"),
        expected=refused("line 62 has 4", "Quote cells that contain a delimiter"),
    ),
    "JSON list in an object": Case(
        name="t.json",
        content=json.dumps(
            {
                "version": 2,
                "data": [dict(zip(TREES, row, strict=True)) for row in zip(*TREES.values(), strict=True)],
            }
        ),
        expected=told("the list 'data' in it is read"),
        first=W0,
    ),
    "lines in quotes with an escaped quote": Case(
        content=lines(lambda n, line: '"' + line.replace("oak", '""oak""') + '"'), expected=OAKS, first=W0
    ),
    "quotes escaped with a backslash before a comma": Case(
        content=lines(lambda n, line: (f'"{n} \\"b\\", c",' if n else "said,") + line),
        expected=told("said: identifier"),
        first=W0,
    ),
    "single quotes and inches": Case(
        content=lines(lambda n, line: (f"'{n}\" screen, new'," if n else "'size',") + line),
        expected=told("size: identifier"),
        first=W0,
    ),
    "names of columns twice": Case(
        content=table(above="height,width,kind\n"), expected=told("the line below the column names"), first=W0
    ),
    "two tables with the same columns": Case(
        content=table(below=table()),
        expected=told("1 line with the column names again left out", rows=2 * NUM),
    ),
    "two tables with other columns": Case(
        content=table() + table({"a": HEIGHT, "b": WIDTH, "c": HEIGHT, "d": KIND}),
        expected=refused(
            "61 rows have another number of cells than 3", "may begin in line 62, with 4 columns"
        ),
    ),
}


CASES |= {
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
    "euros with points between thousands": Case(
        content=with_width(lambda n: f"{grouped(n % 900_000 + 10_000, '.')} €", sep=";"),
        expected=told("it could also be", suggested=("data_reading", "decimal point")),
        first={"width": float(WIDTHS[0] % 900_000 + 10_000)},
    ),
    "durations in words": form(
        lambda n: f"{n % 3 + 1}h {n * 7 % 60}min" if n % 5 else "45 min", "1h 30min is read as 90", first=45.0
    ),
    "clock with Uhr": form(lambda n: f"{n * 5 % 24}:{n * 7 % 60:02} Uhr", "hours", first=0.0),
    "minutes, seconds and tenths": form(
        lambda n: f"{n % 3}:{n * 7 % 60:02},5", "minutes and seconds", first=0.5 / 3600
    ),
    "minutes, and some hours": form(
        lambda n: f"{n % 7}:02:03.5" if n % 5 else "59:59.9", "minutes and seconds", first=3599.9 / 3600
    ),
    "hours with decimals": form(lambda n: f"{n % 9 + 2}{'.5' * (n % 3 == 1)}h", "the unit h", first=2.0),
    "hours with decimals and minutes": form(
        lambda n: f"{n % 3 + 1}h {n * 7 % 60}min" if n % 5 else "1,5 h", "1h 30min is read as 90", first=90.0
    ),
    "hyphens before a word": form(lambda n: f"{n % 4 + 2}-door", kind="category"),
    "hyphens before a word in half of the cells": form(
        lambda n: f"{n % 4 + 12}{' -'[n % 2]}pack", kind="category"
    ),
    "prices without cents": form(
        lambda n: f"{n + 7},-" if n % 2 == 0 else "7,50", "decimal comma", first=7.0
    ),
    "credit and debit": form(
        lambda n: f"{n * 31}.00 {'Cr' if n % 3 else 'Dr'}", "different units: Cr, Dr", kind="ignored"
    ),
    "credit": form(lambda n: f"{n * 31 + 62}.00{' Cr' * (n % 2 == 0)}", "the unit Cr", first=62.0),
    "few numbers with a sign after them": form(
        lambda n: f"{n * 7 % 60 + 20}{ {4: '+', 9: '-'}.get(n, '') }", "signs", first=20.0
    ),
    "codes that begin like months": form(
        lambda n: f"{('MAR', 'Set')[n % 2]}{1000 + n % 12}", kind="category"
    ),
    **{
        f"cells with {mark!r}": Case(
            content=table({"height": HEIGHT, "note": cycle(f"good{mark}old", f"bad{mark}new"), "kind": KIND}),
            expected=told(used=("height", "note")),
        )
        for mark in ("|", "; ", "\t")
    },
    "chosen spaces between words": Case(
        content=table({"colour": cycle("red", "blue"), "kind": KIND}, sep=" "),
        options={"reading": '{"delimiter": " "}'},
        expected=told(used=("colour",)),
    ),
    "JSON of more columns than rows": Case(
        name="t.json",
        content=json.dumps(
            {
                **{f"gene{k}": {str(n): n * 7 % 11 + k + 0.5 for n in range(15)} for k in range(20)},
                "kind": {str(n): KIND[n] for n in range(15)},
            }
        ),
        expected=told(used=tuple(f"gene{k}" for k in range(20)), rows=15),
    ),
    "JSON of rows with more columns": Case(
        name="t.json",
        content=json.dumps(
            {
                str(n): {**{f"gene{k}": n * 7 % 11 + k + 0.5 for k in range(20)}, "kind": KIND[n]}
                for n in range(15)
            }
        ),
        expected=told(used=tuple(f"gene{k}" for k in range(20)), rows=15),
    ),
    "numbers with decimal commas as classes": Case(
        content=table({"height": HEIGHT, "kind": cycle(*DECIMALS)}, sep=";"),
        options={"task": ROWS},
        expected=told(used=("height",), classes=set(DECIMALS)),
        silent=("several labels",),
    ),
    "a chosen text beside numbers": Case(
        content=table(
            {
                "title": each(lambda n: f"a short title of film {n}"),
                **{name: each(lambda n, k=k: f"{n * k % 61}.5") for k, name in enumerate("abcd", 2)},  # type: ignore[misc]
                "label": MOOD,
            }
        ),
        options={"reading": '{"columns": {"title": "text"}}'},
        expected=Reading(task=TEXTS, label="label", used=("title",), classes={"good", "bad"}, rows=NUM),
    ),
    "scores of texts": Case(
        content="text,similarity\n"
        + "".join(f"a film of the week {n},{n % 101 / 100:.2f}\n" for n in range(900)),
        expected=refused("cannot be predicted from texts here"),
    ),
    "missing in German and French": Case(
        content=table(
            {
                **TREES,
                "height": [
                    {3: "#N/V", 9: "#WERT!", 20: "fehlt", 31: "#VALEUR!", 40: "s.o.", 50: "n.v."}.get(n, c)
                    for n, c in enumerate(HEIGHT)
                ],
            }
        ),
        expected=told("missing"),
        missing={"height": 6},
    ),
    "-99.9 for missing": Case(
        content=table({**TREES, "height": ["-99.9" if n % 10 == 3 else c for n, c in enumerate(HEIGHT)]}),
        expected=told("far from the others", suggested=("data_reading", "-99.9")),
    ),
    **{
        f"identifier {name}": Case(
            content=table({name: each(lambda n: str(104233 + n * 7919 % 5003)), **TREES}),
            expected=told(f"{name}: identifier"),
        )
        for name in ("KundenNr", "userid", "EAN", "N° client", "社員番号")
    },
    "money with the minus before the unit": Case(
        content=with_width(lambda n: f"{grouped(n, '.', 2, ',')}- EUR", sep=";"),
        expected=told("unit EUR"),
        first={"width": -float(WIDTHS[0])},
    ),
    "price beside a text": Case(
        content=table(
            {
                "stars": cycle("1", "2", "3"),
                "about": FILM,
                "height": HEIGHT,
                "price": each(lambda n: f"{WIDTHS[n]}.50"),
            }
        ),
        expected=told(
            "predicting a number from texts",
            task=NUMBER,
            label="price",
            used=("stars", "height"),
            classes=set(),
        ),
    ),
    "a rating before a time and a text": Case(
        content=table({"rating": cycle("1", "2", "3"), "time": WIDTH, "text": FILM}),
        expected=Reading(task=TEXTS, label="rating", used=("text",), classes=set("123"), rows=NUM),
    ),
    "totals of groups": Case(
        content=table(above="", below="")
        + "".join(f"{n} Total,{n * 9},\n" for n in range(3))
        + table(header=False),
        expected=told("3 rows look like totals of the others", rows=2 * NUM + 3, is_faulty=True),
        kinds={"height": "mixed"},
    ),
    "commas in each text, between tabs": Case(
        content=table({"label": MOOD, "text": [f"{text}, yes, really" for text in FILM]}, sep="\t"),
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    "grades": Case(
        content=table({"height": HEIGHT, "grade": cycle("1-", "2+", "2", "2-", "3")}),
        expected=told(label="grade", used=("height",), classes={"1-", "2+", "2", "2-", "3"}),
    ),
    "decimal commas and few other numbers": Case(
        content=table(
            {
                "height": each(lambda n: f"{n * 7 % 60},5"),
                "when": each(lambda n: f"{n % 12 + 1}/13/2021"),
                "kind": KIND,
            },
            sep=";",
        ),
        expected=told(used=("height", "when")),
        first={"height": 0.5},
    ),
    "dates as SAS writes them": dates(lambda d: d.strftime("%d%b%Y").upper()),
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
    "dates as in another column": Case(
        content=table(
            {
                "start": each(lambda n: f"{n * 7 % 12 + 1:02}/{n * 5 % 12 + 1:02}/2021"),
                "end": [d.strftime("%d/%m/%Y") for d in WHEN],
                **TREES,
            }
        ),
        expected=told("the day is read first", used=("start", "end", "height", "width")),
        first={"start": "2021-01-01"},
    ),
    "euro after numbers, old Mac": Case(
        content=table(
            {
                "height": [h.replace(".", ",") for h in HEIGHT],
                "width": each(lambda n: grouped(WIDTHS[n], "\u00a0", 2, ",") + "\u00a0€"),
                "kind": KIND,
            },
            sep=";",
            end="\r",
        ),
        code="mac_roman",
        expected=told("unit €"),
        first=W0,
    ),
    "spaces, and a tab before the name": Case(
        content="".join(f'{HEIGHTS[n]:<8}{WIDTHS[n]:<12}{n % 3}\t"tree {n}"\n' for n in range(NUM)),
        name="t.data",
        expected=told(
            "separated by spaces", label="column 3", used=("column 1", "column 2"), classes=set("012")
        ),
    ),
    "texts below one name": is_refused(
        "t.csv", "text\n" + "a line of words\n" * 60, "there is one column only"
    ),
    "quotes that are not closed, between tabs": Case(
        content="label\ttext\n"
        + "".join(f"{MOOD[n]}\t{chr(34) * (n % 9 == 4)}{FILM[n]}\n" for n in range(NUM)),
        name="t.tsv",
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
    "overflow of texts in further columns": Case(
        content="v1,v2,,\n"
        + "".join(f"{MOOD[n]},{FILM[n]!r},{'more' * (n % 30 == 7)},\n" for n in range(NUM)),
        expected=Reading(task=TEXTS, label="v1", used=("v2",), classes={"good", "bad"}, rows=NUM),
    ),
    "a constant before the text": Case(
        content=table({"polarity": cycle("0", "4"), "query": ["NONE"] * NUM, "text": FILM}, header=False),
        expected=Reading(task=TEXTS, label="column 1", used=("column 3",), classes=set("04"), rows=NUM),
    ),
    "half stars of texts": Case(
        content=table({"text": FILM, "stars": cycle("1", "2.5", "4.5", "5")}),
        expected=Reading(
            task=TEXTS, label="stars", used=("text",), classes={"1", "2.5", "4.5", "5"}, rows=NUM
        ),
    ),
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


def put(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    "names",
    [
        ("a", "a", "a"),
        ("", "width", "kind"),
        ("x" * 400, "width", "kind"),
        ("0", "1", "2"),
        ("2019", "2020", "2021"),
    ],
)
def test_odd_names_of_columns(tmp_path: Path, names: tuple[str, str, str]) -> None:
    answer = inspected(put(tmp_path, table(header=False, above=",".join(names) + "\n")))
    assert answer["ok"] and answer["preview"]["num_rows"] == NUM, said(answer)
    header = answer["preview"]["header"]
    assert len(set(header)) == 3 and all(0 < len(name) <= 200 for name in header)
    assert answer["preview"]["class_counts"] == dict.fromkeys(OAK, 20)


LABELS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "numbers": (("1", "1.0", "2", "2.0"), ("1", "2"), ""),
    "leading zeros": (("01", "1", "02"), ("1", "2"), ""),
    "case": (("yes", "Yes", "no"), ("yes", "Yes", "no"), "join_labels"),
    "spaces inside": (("very good", "very  good", "bad"), ("very good", "very  good", "bad"), "join_labels"),
    "spaces around": ((" yes", "yes ", "no"), ("yes", "no"), ""),
    "no-break space": (("yes\u00a0", "yes", "no"), ("yes", "no"), ""),
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
    assert not answer["ok"] and "allowed is" in said(answer)


@pytest.mark.parametrize("sheet", ["", "Second"])
def test_sheets_of_a_spreadsheet(tmp_path: Path, sheet: str) -> None:
    rows = [list(TREES), *map(list, zip(*TREES.values(), strict=True))]
    path = write_xlsx(tmp_path / "t.xlsx", rows, ("First", "Second"))
    answer = inspected(path, reading=json.dumps({"sheet": sheet}) if sheet else "")
    check(answer, told(f"the sheet '{sheet or 'First'}' is read"))


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
    (click,) = [one for one in inspected(path)["problems"] if "data_reading" in one["suggested"]]
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


def test_one_query_finds_the_columns_of_a_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query for each of many columns of 0 and 1 would take minutes in a long table."""
    asked: list[str] = []
    query = Table.query
    monkeypatch.setattr(Table, "query", lambda self, sql: asked.append(sql) or query(self, sql))
    some = {f"c{k}": each(lambda n, k=k: str(int(n == k))) for k in range(50)}  # type: ignore[misc]
    inspected(put(tmp_path, table({"height": HEIGHT, **some, "kind": cycle("0", "1")})))
    assert sum("IN ('1', 'true'))::INT" in sql for sql in asked) == 1


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
