"""Tables that were once misread: units, codes, months with a year, addresses, totals, fastText."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import inspected
from tests.unit.trainers.data.own.test_people_files import NUMBER, TEXTS, Reading, said
from tests.unit.trainers.data.own.test_table_variants import (
    FILM,
    HEIGHT,
    HEIGHTS,
    KIND,
    MONTHS,
    MOOD,
    NUM,
    TREES,
    W0,
    WIDTH,
    WIDTHS,
    Case,
    check_case,
    each,
    form,
    is_refused,
    lines,
    make,
    parquet,
    plain,
    table,
    told,
)

# ---- units in or below the names of columns


def units_below(*units: str) -> Case:
    text = lines(lambda n, line: line + f"\n{','.join(units)}" * (not n))
    return plain(text, f"the line below the column names, {', '.join(units)}")


def named(height: str, width: str) -> Case:
    columns = {height: HEIGHT, width: WIDTH, "kind": KIND}
    return Case(content=table(columns), expected=told(used=(height, width)), first={width: W0["width"]})


def first_row(*cells: str, is_faulty: bool = False, **changes: Any) -> Case:
    content = table().replace("\n", f"\n{','.join(cells)}\n", 1)
    return Case(content=content, expected=told(rows=NUM + 1, is_faulty=is_faulty), **changes)


CASES: dict[str, Case] = {
    "units below: 10^3/µL": units_below("10^3/µL", "10^6/µL", "text"),
    "units below: x10^9/L": units_below("10*9/L", "x10^9/L", "-"),
    "units below: in brackets": units_below("[10^3/µL]", "(10^12/L)", "text"),
    "units below: only one is a power of ten": units_below("g/dL", "10E9/L", "text"),
    "units as names": named("10^3/µL", "10*9/L"),
    "units in names": named("WBC (10^3/µL)", "PLT x10^9/L"),
    "powers as names": named("10^1", "10^2"),
    "a first row of numbers is a row": first_row("3.5", "4000", "oak", first={"width": 4000.0}),
    "a first row of numbers with units is a row": first_row(
        "3.5 m2", "4000 kg", "oak", kinds={"height": "mixed", "width": "mixed"}, is_faulty=True
    ),
    "a first row with a missing number is a row": first_row("n/a", "4000", "oak", missing={"height": 1}),
}


# ---- numbers of customers and the like
def five_digits(n: int) -> str:
    return str(10_000 + n * 7919 % 88_001)


IDENTIFIERS = (
    "Code client", "Code produit", "Kundennr.", "Num dossier", "code_article", "Numéro de dossier",
    "Artikelnr", "CodeClient", "No. de commande", "customer code", "Código cliente", "Mitgliedsnummer",
    "Codice cliente", "order no.", "Ref produit", "Kunden-Nr", "N° de facture", "社員番号",
    "Réf. produit", "Code de l'article", "CUSTOMER_CODE",
)  # fmt: skip
COUNTS = (
    "num_clients", "Number of orders", "client age", "product price", "casino", "code insee", "code",
    "number", "order amount",
)  # fmt: skip
CASES |= {
    **{
        f"{kind}: {name}": form(five_digits, kind, kind=kind, name=name)
        for kind, names in (("identifier", IDENTIFIERS), ("number", COUNTS))
        for name in names
    },
    "identifier: repeated customers": form(
        lambda n: five_digits(n // 2), kind="identifier", name="Code client"
    ),
    "identifier: leading zeros": form(lambda n: f"{n // 2 * 7:05}", kind="identifier", name="Kundennr."),
    "code of few values": form(lambda n: str(101 + n * 7 % 6), name="Code produit"),
    "code of a postal district": form(
        lambda n: str(75_001 + n * 7 % 25), kind="category", name="Code postal"
    ),
    "code of a diagnosis": form(lambda n: str(250 + n * 7 % 40), name="diagnosis code"),
    "code of a country": form(lambda n: ("FR", "DE", "IT")[n % 7 % 3], kind="category", name="code pays"),
}


# ---- a month and a year of two digits


def months(write: Callable[[int, int], str], kind: str, *words: str, silent: tuple[str, ...] = ()) -> Case:
    """Return a table with a column written from a month (1 to 12) and a year of two digits (19 to 23)."""
    content = table({"when": each(lambda n: write(n % 12 + 1, 19 + n // 12)), **TREES}, sep=";")
    used = ("when",) * (kind == "date") + ("height", "width")
    first = {"when": "2019-01-01"} if kind == "date" else {}
    return Case(content=content, expected=told(*words, used=used), kinds={"when": kind}, first=first,
                silent=silent)  # fmt: skip


def english(month: int, form: str = "%b") -> str:
    return datetime.date(2020, month, 1).strftime(form)


def some_day(month: int, year: int) -> int:
    return (month * 5 + year * 7) % 31 + 1


DOUBT = "the number could be a day"
CASES |= {
    "month and year: Jan-21": months(lambda m, y: f"{english(m)}-{y}", "date", f"in 'Apr-19' {DOUBT}"),
    "month and year: Mai 21": months(lambda m, y: f"{MONTHS['German'].split()[m - 1]} {y}", "date", DOUBT),
    "month and year: gen-21": months(lambda m, y: f"{MONTHS['Italian'].split()[m - 1][:3]}-{y}", "date"),
    "month and year: Jan '21": months(lambda m, y: f"{english(m)} '{y}", "date", silent=(DOUBT,)),
    "month and year: years above 31": Case(
        content=table({"when": each(lambda n: f"{english(n % 12 + 1)}-{95 - n // 12}"), **TREES}),
        expected=told(used=("when", "height", "width")),
        kinds={"when": "date"},
        first={"when": "1995-01-01"},
        silent=(DOUBT,),
    ),
    "month and day": months(lambda m, y: f"{english(m)} {some_day(m, y):02}", "identifier"),
    "day and month": months(lambda m, y: f"{some_day(m, y):02}-{english(m)}", "identifier"),
    "one month and numbers": months(lambda m, y: f"Set {m + (y - 19) * 12 + 10}", "identifier"),
    "names and numbers": months(
        lambda m, y: f"{('Mark', 'Maria', 'Julia', 'Marina')[m % 4]} {m + (y - 19) * 12 + 32}", "identifier"
    ),
    "May 21, 2020": months(lambda m, y: f"{english(m)} {m:02}, 20{y}", "date", silent=(DOUBT,)),
}


# ---- postal addresses


def addresses(name: str, write: Callable[[int], str]) -> Case:
    content = table({name: each(write), "height": HEIGHT, "kind": KIND}, sep=";")
    return Case(
        content=content, expected=told("postal addresses", used=("height",)), kinds={name: "identifier"}
    )


STREETS = ("Main Street", "Oak Avenue", "Lake Road", "Hill Drive")
ADDRESS = each(lambda n: f"{n * 7} {STREETS[n % 4]}, Springfield")
STRASSEN = ("Hauptstraße", "Am Waldweg", "Goetheplatz", "Bachgasse")
CASES |= {
    "addresses: American": addresses("where", lambda n: f"{n * 7} {STREETS[n % 4]}, Springfield, IL 6270{n}"),
    "addresses: German": addresses(
        "Anschrift", lambda n: f"{STRASSEN[n % 4]} {n + 1}, {10_000 + n * 31} Berlin Mitte, Deutschland"
    ),
    "addresses: Spanish": addresses("dónde", lambda n: f"Calle de Alcalá {n + 1}, 280{n % 20:02} Madrid"),
    "addresses: by the name of the column": addresses(
        "Adresse", lambda n: f"Am alten Graben {n + 1}, A-10{n % 20:02} Wien"
    ),
    "addresses chosen as texts": Case(
        content=table({"address": ADDRESS, "kind": KIND}),
        options={"reading": '{"columns": {"address": "text"}}'},
        expected=told(task=TEXTS, used=("address",)),
    ),
    "texts about streets": Case(
        content=table(
            {"text": each(lambda n: f"we left our street and {n} of us liked the new road"), "label": MOOD}
        ),
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
    ),
}  # fmt: skip


# ---- totals between groups


def totals(*rows: str, is_total: bool = True, **changes: Any) -> Case:
    """Return a table of three groups of 20 rows, each followed by these rows."""
    groups = [
        "".join(f"{group},shop {n % 5},{n * 31 % 97}.5,{n * 13 + len(group)}\n" for n in range(20))
        + "".join(row.format(group) + "\n" for row in rows)
        for group in ("North", "South", "West")
    ]
    if is_total:
        changes |= {"suggested": ("data_reading", "leave_out_totals")}
    changes |= {"label": "size", "task": NUMBER, "used": ("region", "shop", "sales"), "classes": set()}
    changes["rows"] = 60 + 3 * len(rows)
    return Case(
        content="region,shop,sales,size\n" + "".join(groups),
        expected=told(*["3 rows look like totals"] * is_total, **changes),
        silent=() if is_total else ("totals",),
    )


def last_row(cells: str, words: str = "the last row", *, is_total: bool = True) -> Case:
    kinds = {line.rpartition(",")[2] for line in cells.split("\n")}
    changes = {"classes": {*KIND, *kinds}, "is_faulty": not kinds <= set(KIND)}
    return Case(
        content=table(below=cells + "\n"),
        expected=told(*[words, "of the others"] * is_total, rows=NUM + 1 + cells.count("\n"), **changes),
        silent=("far from the others",) if is_total else ("of the others.",),
    )


CASES |= {
    "totals: North Total": totals("{} Total,,975.5,800"),
    "totals: Total North": totals("Total {},,975.5,800"),
    "totals: Zwischensumme": totals("Zwischensumme,,975.5,800"),
    "totals: Sous-total": totals("{},Sous-total,,800"),
    "totals: 小计": totals("{},小计,,800"),
    "totals: without a label": totals("{} Total,shop,975.5,", is_faulty=True),
    "no totals: a brand": totals("Total,shop 9,12.5,80", is_total=False),
    "no totals: names of games with missing values": totals(
        "Total War {},shop 1,12.5,80", "Total War {},,12.5,81", "Rome {},,12.5,82", is_total=False
    ),
    "totals: all cells are filled": totals("{} Total,all,953.0,801"),
    "last row: Average": last_row(f"{sum(HEIGHTS) / NUM:.2f},{sum(WIDTHS) / NUM:.0f},Average"),
    "last row: Summe": last_row(f"{sum(HEIGHTS):.2f},{sum(WIDTHS)},Summe"),
    "last row: sums without a word": last_row(f"{sum(HEIGHTS):.2f},{sum(WIDTHS)},oak"),
    "last row: a sum and an average below": last_row(
        f"{sum(HEIGHTS):.2f},{sum(WIDTHS)},Total\n{sum(HEIGHTS) / NUM:.2f},{sum(WIDTHS) / NUM:.0f},Mean",
        "the last 2 rows",
    ),
    "no total: a kind of this name": last_row("50.5,90000,total", is_total=False),
    "no total: the largest row": last_row("99.5,9000000,oak", is_total=False),
}


# ---- fastText


def fast_text(write: Callable[[int], str]) -> Case:
    return Case(
        content="".join(write(n) + "\n" for n in range(NUM)),
        name="t.txt",
        expected=Reading(task=TEXTS, label="label", used=("text",), classes={"good", "bad"}, rows=NUM),
        first={"text": FILM[0], "label": MOOD[0]},
    )


CASES |= {
    "fastText: labels at the end": fast_text(lambda n: f"{FILM[n]} __label__{MOOD[n]}"),
    "fastText: labels at both ends": fast_text(
        lambda n: f"{FILM[n]} __label__{MOOD[n]}" if n % 2 else f"__label__{MOOD[n]} {FILM[n]}"
    ),
    "fastText: labels in the middle": fast_text(lambda n: FILM[n].replace(" ", f" __label__{MOOD[n]} ", 1)),
    "fastText: several labels at the end": is_refused(
        "t.txt", "".join(f"{FILM[n]} __label__a __label__b\n" for n in range(NUM)), "several labels"
    ),
    "no fastText: some lines": Case(
        content="".join(f"a line of words {n}{' __label__x' * (n % 3 == 0)}\n" for n in range(NUM)),
        name="t.txt",
        expected=Reading(task="language_modelling", label="", used=()),
    ),
}


# ---- units with digits and spaces, powers of ten, pairs and fractions


def measured(unit: Callable[[int], str], *words: str, kind: str = "number") -> Case:
    number = kind == "number"
    return form(lambda n: f"{n * 7 % 60 + 2}.5{unit(n)}", *words, first=2.5 if number else None, kind=kind)


CASES |= {
    **{
        f"unit: {unit}": measured(lambda n, unit=unit: unit, "number with the unit")  # type: ignore[misc]
        for unit in (
            " 10^3/µL", " x10^9/L", "×10⁹/L", " x 10*9/L", "·10³/µl", " mL/min/1.73m2", " mL/min/1,73 m²",
            " g/dL", " g / dL", " mg/24h", " g/100 mL", " sq ft", " 10^3/mm3", " x10e3/µL",
        )
    },
    "unit: decimal commas": form(lambda n: f"{n + 2},5 10^3/µL", "comma and the unit 10^3/µL", first=2.5),
    "unit: different powers": measured(
        lambda n: f" 10^{3 + n % 2 * 3}/µL", "different units: 10^3/µL, 10^6/µL", kind="ignored"
    ),
    "powers of ten": measured(lambda n: f" × 10^{n % 4}", "5.2 x 10^3 is read as 5200"),
    "no power: sizes": form(lambda n: f"{n * 7 % 20 + 2} x 10", kind="category"),
    **{
        f"pair: 120/80{unit}": form(
            lambda n, unit=unit: f"{95 + n}/{60 + n}{unit}", "becomes two numbers", kind="coordinates"
        )
        for unit in (" mmHg", " mm Hg")
    },
    "no pair: tyres": form(lambda n: f"{165 + n * 10 % 90}/{40 + n * 5 % 30}", kind="category"),
    "no pair: seasons": form(lambda n: f"{70 + n % 29}/{71 + n % 29}", kind="category"),
    "fraction: 3/20": form(lambda n: f"{n % 7 + 1}/{(20, 16, 32, 64)[n % 4]}", first=0.05),
    "fraction: 82/100": form(lambda n: f"{82 + n * 7 % 18}/100", first=0.82),
    "unit: CELLS/µL": form(lambda n: f"{n + 2}000 CELLS/µL", "with the unit CELLS/µL", first=2000.0),
    "ordinals": form(
        lambda n: f"{n % 4 + 1}{('st', 'nd', 'rd', 'th')[n % 4]}", "1st is read as 1", first=1.0
    ),
    "degrees: decimal": form(lambda n: f"{n}.5°{'SN'[n % 2]}", "is read as -52.5", first=-0.5),
    "degrees: minutes": form(lambda n: f"{n + 1}° 30' {'WE'[n % 2]}", first=-1.5),
    "degrees: seconds": form(lambda n: f"{n + 1}°30'36″{'NS'[n % 2]}", first=1.51),
    "no degrees: watts": form(lambda n: f"{n + 1} W", "with the unit W", first=1.0),
}  # fmt: skip


FEATURES_IN_ROWS = f"sample,{','.join(f's{n}' for n in range(NUM))}\n" + "".join(
    f"{name},{','.join(cells)}\n" for name, cells in TREES.items()
)


def ruled(rule: str) -> str:
    return lines(lambda n, line: f"| {line.replace(',', ' | ')} |" + f"\n{rule}" * (n == 0))


def coded(name: str, write: Callable[[int], str], kind: str, *words: str) -> Case:
    used = ("height", "width", *[name] * (kind != "identifier"))
    content = table({"height": HEIGHT, "width": WIDTH, name: each(write), "kind": KIND})
    return Case(content=content, expected=told(*words, used=used), kinds={name: kind})


def dated(write: Callable[[int], str], kind: str) -> Case:
    return Case(
        content=table({"when": each(write), **TREES}),
        expected=told(used=("when", "height", "width")),
        kinds={"when": kind},
    )


# ---- flags of laboratories, words among numbers, currencies, shares, seasons, versions


def day(n: int) -> str:
    return str(datetime.date(2019, 11, 5) + datetime.timedelta(days=23 * n))


FLAG = "flags such as H or L"
CASES |= {
    **{
        f"flags: {write(0)}, {write(1)}": form(write, FLAG, first=129.5)
        for write in (
            lambda n: f"{129 + n}.5{(' L', ' H', '', '', '')[n % 5]}",
            lambda n: f"{129 + n}.5{('', ' (H)', '', ' (L)', '')[n % 5]}",
            lambda n: f"{129 + n}.5{'LL' * (n % 10 == 1)}",
            lambda n: f"{('L ', '', 'H ', '')[n % 4]}{129 + n}.5",
        )
    },
    "no flags: litres": form(lambda n: f"{n + 2} L", "the unit L", first=2.0),
    "points between thousands, next to whole numbers": form(
        lambda n: f"{n + 200}" if n % 6 == 1 else f"{n + 41}.{419 + n}",
        "it could also be 41.419",
        first=41419.0,
    ),
    "no thousands: zeros and three decimals": form(
        lambda n: "0" if n % 6 == 1 else f"{n + 41}.{419 + n}", first=41.419
    ),
    **{
        f"words among numbers: {word}": form(
            lambda n, word=word, of=of: word if n % of == 1 else f"{n}.5",
            f"‘{word}’ means missing",
            first=0.5,
        )
        for word, of in {"Free": 2, "нет данных": 6, "1.#QNAN": 6, "(blank)": 6}.items()
    },
    **{
        f"unit: {write(0)}, {write(1)}": form(write, words, first=2.0)
        for words, write in (
            ("the unit Rp", lambda n: f"Rp {n + 2}"),
            ("the unit $ … /month", lambda n: f"${n + 2}/month"),
            ("the unit star", lambda n: f"{n % 4 + 2} stars" if n % 3 else f"{2 - n % 2} star"),
            ("the unit kg", lambda n: f"{n + 2} {('kg', 'Kg', 'KG')[n % 3]}"),
            ("the limits in 20 of 60 cells", lambda n: f"~{n + 2} kg" if n % 3 == 0 else f"{n + 2} kg"),
        )
    },
    "unit: no unit with another capital": form(
        lambda n: f"{n + 2} {'mM'[n % 2]}W", "different units", kind="ignored"
    ),
    "millions in words": form(
        lambda n: f"${n + 2}.5 million" if n % 2 == 0 else f"${n + 850},000", first=2_500_000.0
    ),
    "percent and parts of 1": form(
        lambda n: f"{n + 5}%" if n % 2 else f"0.{n + 10}", "some in percent", kind="ignored"
    ),
    "ratings": form(lambda n: f"{n % 9 / 2 + 0.5}/5", first=0.1),
    "marks of a direction": form(lambda n: f"\u200e{n + 2}.5", first=2.5),
    "zero dates": dated(lambda n: "0000-00-00" if n % 6 == 1 else day(n), "date"),
    "seasons": dated(lambda n: f"{2001 + n % 11}-{2 + n % 11:02}", "category"),
    "months": dated(lambda n: f"{2001 + n % 11}-{1 + n % 12:02}", "date"),
    "versions": coded("app version", lambda n: ("1.9", "1.10", "1.11")[n % 3], "category", "versions"),
    # ---- indexes that were saved and joined
    **{
        f"index: {', '.join(indexes)}": Case(
            content=table({**{name: each(write) for name, write in indexes.items()}, **TREES}),
            expected=told("row index, ignored"),
        )
        for indexes in (
            {"Unnamed: 0.1": lambda n: five_digits(n), "Unnamed: 0": lambda n: five_digits(n + 60)},
            {"": lambda n: str(n % 30)},
        )
    },
    "index: at the end": Case(
        content=table({**TREES, "__index_level_0__": each(five_digits)}),
        expected=told("row index, ignored"),
    ),
    "no index: a class in a first column": Case(
        content=table({"Unnamed: 0": each(lambda n: str(n % 3)), **TREES}),
        expected=told(used=("Unnamed: 0", "height", "width")),
    ),
    # ---- names that are decimal numbers; rules between rows; JSON of any suffix; features in rows
    "names that are wavelengths": Case(
        content=table(
            {**{f"{400 + k}.5": each(lambda n, k=k: str(n * k % 31)) for k in range(1, 7)}, "kind": KIND}
        ),
        expected=told(used=tuple(f"{400 + k}.5" for k in range(1, 7))),
    ),
    **{
        f"rules between rows: {rule}": plain(above + ruled(rule) + above, name="t.txt")
        for rule, above in {"|---|:-:|---|": "", "+---+---+---+": "+---+---+---+\n"}.items()
    },
    "JSON Lines called .txt": plain(
        "".join(
            json.dumps({"height": HEIGHTS[n], "width": WIDTHS[n], "kind": KIND[n]}) + "\n" for n in range(NUM)
        ),
        name="t.txt",
    ),
    "features in rows": Case(
        content=FEATURES_IN_ROWS,
        expected=told(
            "rows look like features", task="", is_faulty=True, suggested=("data_reading", "transposed")
        ),
    ),
    "features in rows, swapped": Case(
        content=FEATURES_IN_ROWS,
        options={"reading": '{"transposed": true}'},
        expected=told("sample: identifier"),
        first=W0,
    ),
    "milliards and millions": form(
        lambda n: f"{n % 7 + 1},2 Mrd. €" if n % 2 == 0 else f"{3 + n},4 Mio. €", first=1.2e9
    ),
    "ages over and under": form(
        lambda n: {4: "80 and over", 1: "under 1"}.get(n % 9, str(n)), "in 14 of 60 cells", first=0.0
    ),
    "title with commas": plain("Trees, bushes, and flowers\n\n" + table(), "Trees, bushes, and flowers"),
    "names and values above two columns": Case(
        content="Station,Berlin\nPeriod,2020\n\n" + table({"height": HEIGHT, "kind": KIND}),
        expected=told("Station, Berlin / Period, 2020", used=("height",)),
    ),
    "title above a nameless index": plain(
        "Trees,,,\n" + lines(lambda n, line: f"{five_digits(n) if n else ''},{line}"), "row index, ignored"
    ),
    "texts as bytes": Case(
        content=parquet(
            "SELECT i * 29 % 60 + 0.5 AS height, ['oak', 'elm'][i % 2 + 1]::BLOB AS kind FROM range(60) t(i)"
        ),
        name="t.parquet",
        expected=told(used=("height",), classes={"oak", "elm"}),
    ),
    "classes of a column called class": Case(
        content="class,a\n" + "".join(f"{100 + n % 24 * 50},{n * 7 % 31}\n" for n in range(240)),
        expected=told(label="class", used=("a",), rows=240, classes={str(100 + n * 50) for n in range(24)}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_table_is_no_longer_misread(tmp_path: Path, name: str) -> None:
    check_case(CASES[name], tmp_path)


@pytest.mark.parametrize("name", ["totals: Sous-total", "totals: without a label"])
def test_totals_are_left_out_by_a_click(tmp_path: Path, name: str) -> None:
    path = make(CASES[name], tmp_path)
    [click] = [one for one in inspected(path)["problems"] if "leave_out_totals" in str(one["suggested"])]
    assert click["action"] == "Leave out the totals (3 rows)"
    answer = inspected(path, reading=click["suggested"]["data_reading"])
    assert answer["ok"] and answer["preview"]["num_rows"] == 60, said(answer)
    assert "3 rows of totals are left out" in said(answer)


@pytest.mark.parametrize(
    ("name", "num"), [("last row: Summe", 1), ("last row: a sum and an average below", 2)]
)
def test_last_totals_are_left_out_by_a_click(tmp_path: Path, name: str, num: int) -> None:
    path = make(CASES[name], tmp_path)
    [click] = [one for one in inspected(path)["problems"] if "leave_out_last" in str(one["suggested"])]
    answer = inspected(path, reading=click["suggested"]["data_reading"])
    assert json.loads(click["suggested"]["data_reading"]) == {"leave_out_last": num}
    assert answer["ok"] and answer["preview"]["num_rows"] == NUM, said(answer)


@pytest.mark.parametrize(
    ("name", "cell", "decision"),
    [
        ("household", lambda row: f"H{row:03d}", "identifier"),
        ("level", lambda row: f"L{1 + row % 5}", "category"),
        ("glucose", lambda row: f"{'L ' * (row % 5 == 0)}{100 + row * 0.3:.1f}", "number with flags"),
        ("drug_release", lambda row: f"{0.1 + row * row * 0.017:.2f}", "number"),
    ],
)
def test_codes_and_releases_are_not_flags_and_versions(
    name: str, cell: Callable[[int], str], decision: str, tmp_path: Path
) -> None:
    rows = [f"{cell(row)},{20 + row * 7 % 50},{row * 13 % 29 + 0.5}" for row in range(1, 61)]
    (path := tmp_path / "table.csv").write_text("\n".join([f"{name},age,score", *rows]) + "\n")
    columns = {column["name"]: column["decision"] for column in inspected(path)["columns"]}
    assert columns[name].startswith(decision), columns
