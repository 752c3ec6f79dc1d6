"""Further ways in which people write tables, each with the reading of a careful analyst."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest

from tests.unit.own_files import (
    inspected,
    own_cache,  # noqa: F401 - a fixture
    write_xlsx,
)
from tests.unit.trainers.data.own.test_people_files import NUMBER, OAK, TEXTS, Reading, check, said

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


def zipped(name: str, text: str) -> bytes:
    to = io.BytesIO()
    with zipfile.ZipFile(to, "w") as archive:
        archive.writestr(name, text)
    return to.getvalue()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file and what has to be read from it.

    Attributes:
        content: the file; a function writes it.
        options: of the inspection.
        first: the first cells as read, by the name of the column.
        kinds: what columns hold.
        missing: number of missing values of columns.
        silent: what must not be said.
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
MONTHS = [
    "Januar",
    "Februar",
    "März",
    "April",
    "Mai",
    "Juni",
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
]
DAY = datetime.datetime(2019, 11, 5, 13, 45, 30, tzinfo=datetime.UTC)
WHEN = [DAY + datetime.timedelta(days=23 * n, minutes=17 * n) for n in range(NUM)]


def told(*words: str, **changes: object) -> Reading:
    return Reading(**{"classes": OAK, "rows": NUM, "told": words, **changes})  # type: ignore[arg-type]


def refused(*words: str) -> Reading:
    return Reading(task="", told=words)


def letters(kinds: tuple[str, str, str], code: str, sep: str = ";") -> Case:
    """A table whose labels have letters of a code page."""
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
    "German months": dates(
        lambda d: f"{d.day}. {MONTHS[d.month - 1]} {d.year}",
        "identifier",
        "identifier, ignored",
    ),
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
    "Klasse in the middle": Case(
        content=table({"height": HEIGHT, "Klasse": KIND, "width": WIDTH}),
        expected=told(
            "also a column 'Klasse'",
            task=NUMBER,
            label="width",
            used=("height", "Klasse"),
            classes=set(),
            suggested=("label_column", "Klasse"),
        ),
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
        expected=refused("JSON"),
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
        expected=refused("spreadsheet cannot be read"),
    ),
    "gzip": Case(name="t.csv.gz", content=gzip.compress(table().encode()), expected=refused("Unpack it")),
    "zip of one CSV": Case(
        name="t.zip", content=zipped("t.csv", table()), expected=refused("table", "Unpack")
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
    case = CASES[name]
    answer = inspected(make(case, tmp_path), **case.options)
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
