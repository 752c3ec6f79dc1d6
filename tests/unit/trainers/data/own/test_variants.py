"""Variants of the files that people bring: each way to write a table, and what has to be read from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import (
    inspected,
    own,
    own_cache,  # noqa: F401 - a fixture
    write_xlsx,
)
from tests.unit.trainers.data.own.test_people_files import said

KINDS = ("Eiche", "Föhre", "Ulme")
SIZES = [round(5.25 + 1.37 * (n * 29 % 60), 2) for n in range(60)]
NUMBERS = [(n * 7919 + 13) % 90_000 + (n % 3 == 0) * 1_000_000 for n in range(60)]
Row = list[str]


def rows(
    number: Callable[[int], str] = str,
    size: Callable[[float], str] = "{:.2f}".format,
    kinds: Sequence[str] = KINDS,
) -> list[Row]:
    """Return 60 rows of a size, a number and a kind."""
    kind = [kinds[n % len(kinds)] for n in range(60)]
    return [[size(SIZES[n]), number(NUMBERS[n]), kind[n]] for n in range(60)]


def text(
    table: list[Row], delimiter: str = ",", header: Sequence[str] | None = ("Größe", "Zahl", "Sorte")
) -> str:
    def cell(value: str) -> str:
        return '"' + value.replace('"', '""') + '"' if delimiter in value or '"' in value else value

    lines = [delimiter.join(map(cell, row)) for row in ([list(header)] if header else []) + table]
    return "\n".join(lines) + "\n"


def read(path: Path, content: str, code: str = "utf-8", **options: Any) -> dict[str, Any]:
    path.write_bytes(content.encode(code))
    return inspected(path, **options)


def check(
    answer: dict[str, Any],
    *,
    used: Sequence[str] = ("Größe", "Zahl"),
    label: str = "Sorte",
    numbers: Sequence[float] | None = NUMBERS,
    classes: Sequence[str] = KINDS,
    num_rows: int = 60,
) -> None:
    told = said(answer)
    assert answer["ok"], told
    assert answer["label_column"] == label, told
    assert [each["name"] for each in answer["columns"] if each["is_used"] and each["name"] != label] == list(
        used
    ), told
    assert set(answer["preview"]["class_counts"]) == set(classes), told
    assert answer["preview"]["num_rows"] == num_rows, told
    if numbers is not None:
        place = answer["preview"]["header"].index("Zahl")
        written = [float(row[place]) for row in answer["preview"]["read_rows"] if row[place]]
        assert written == pytest.approx(numbers[: len(written)]), told


@pytest.mark.parametrize(
    ("delimiter", "code"),
    [
        (",", "cp1252"),
        (";", "utf-16"),
        ("\t", "utf-8-sig"),
        ("|", "utf-16-le"),
        ("^", "utf-8"),
        ("~", "cp1252"),
    ],
)
def test_delimiters_and_encodings(tmp_path: Path, delimiter: str, code: str) -> None:
    check(read(tmp_path / "t.csv", text(rows(), delimiter), code))


@pytest.mark.parametrize(
    ("suffix", "delimiter"),
    [(".txt", ","), (".dat", "\t"), (".data", ";"), ("", ","), (".tsv", ";"), (".tab", ",")],
)
def test_endings(tmp_path: Path, suffix: str, delimiter: str) -> None:
    check(read(tmp_path / f"t{suffix}", text(rows(), delimiter)))


def grouped(number: float, mark: str, decimals: int = 0, point: str = ".") -> str:
    return f"{number:,.{decimals}f}".replace(".", "#").replace(",", mark).replace("#", point)


def indian(number: int) -> str:
    head, tail = divmod(number, 1000)
    parts = [f"{tail:03}"] if head else [str(tail)]
    while head:
        head, pair = divmod(head, 100)
        parts.append(f"{pair:02}" if head else str(pair))
    return ",".join(reversed(parts))


NOTATIONS: dict[str, Callable[[int], str]] = {
    "1,234": lambda n: grouped(n, ","),
    "1.234.567": lambda n: grouped(n, "."),
    "1 234": lambda n: grouped(n, " "),
    "1\u00a0234": lambda n: grouped(n, "\u00a0"),
    "1\u202f234": lambda n: grouped(n, "\u202f"),
    "1'234": lambda n: grouped(n, "'"),
    "1’234": lambda n: grouped(n, "’"),
    "12,34,567": indian,
    "1,234.00": lambda n: grouped(n, ",", 2),
    "1.234,00": lambda n: grouped(n, ".", 2, ","),
    "1 234,00": lambda n: grouped(n, " ", 2, ","),
    "1'234.00": lambda n: grouped(n, "'", 2),
    "1234,00": lambda n: f"{n},00",
    "$1,234": lambda n: "$" + grouped(n, ","),
    "$ 1,234.00": lambda n: "$ " + grouped(n, ",", 2),
    "1.234,00 €": lambda n: grouped(n, ".", 2, ",") + " €",
    "EUR 1234": lambda n: f"EUR {n}",
    "£1234": lambda n: f"£{n}",
    "1,234 kr": lambda n: grouped(n, ",") + " kr",
    "12 kg": lambda n: f"{n} kg",
    "12kg": lambda n: f"{n}kg",
    "12 %": lambda n: f"{n} %",
    "12°C": lambda n: f"{n}°C",
    "+12": lambda n: f"+{n}",
    "1.2e3": lambda n: f"{n:.10e}",
    " 12 ": lambda n: f"  {n} ",
}


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("name", NOTATIONS)
def test_notations_of_numbers(tmp_path: Path, name: str, delimiter: str) -> None:
    check(read(tmp_path / "t.csv", text(rows(NOTATIONS[name]), delimiter)))


@pytest.mark.parametrize(
    "write",
    [lambda n: f"−{n}", lambda n: f"({n:,})", lambda n: f"-${n:,}", lambda n: f"-{n} kg", lambda n: f"$-{n}"],
)
def test_negative_numbers(tmp_path: Path, write: Callable[[int], str]) -> None:
    check(read(tmp_path / "t.csv", text(rows(write))), numbers=[-n for n in NUMBERS])


MISSING = (
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
    "未知",
    "*",
    "refused",
)


@pytest.mark.parametrize("spelling", MISSING)
@pytest.mark.parametrize("notation", ["plain", "decimal comma"])
def test_spellings_of_missing_values(tmp_path: Path, spelling: str, notation: str) -> None:
    is_plain = notation == "plain"
    table = rows(str if is_plain else lambda n: f"{n},5")
    for place in range(1, 60, 7):
        table[place][1] = spelling
    answer = read(tmp_path / "t.csv", text(table, ";"))
    check(answer, numbers=None)
    column = answer["columns"][1]
    assert column["type"] == "number" and column["num_missing"] == 9, said(answer)


HEADERS: dict[str, tuple[Callable[[str], str], str]] = {
    "title": (lambda t: "Bäume im Park\n" + t, "Bäume im Park"),
    "title and empty line": (lambda t: "Bäume im Park\n\n" + t, "Bäume im Park"),
    "title with empty cells": (lambda t: "Bäume im Park,,\n" + t, ""),
    "comments": (lambda t: "# a comment\n# and another, with comma\n" + t, "a comment"),
    "comment below": (lambda t: t.replace("\n", "\n# comment\n", 1), ""),
    "sep": (lambda t: "sep=,\n" + t, ""),
    "units": (lambda t: t.replace("\n", "\n(m),(kg),\n", 1), "(m), (kg)"),
    "empty lines": (lambda t: "\n\n" + t.replace("\n", "\n\n"), ""),
    "empty rows": (lambda t: t + ",,\n,,\n", ""),
    "trailing delimiter": (lambda t: t.replace("\n", ",\n"), ""),
    "trailing delimiter in header": (lambda t: t.replace("\n", ",\n", 1), ""),
    "quoted": (
        lambda t: "\n".join(",".join(f'"{c}"' for c in line.split(",")) for line in t.splitlines()),
        "",
    ),
    "space and quotes": (
        lambda t: "\n".join(", ".join(f'"{c}"' for c in line.split(",")) for line in t.splitlines()),
        "",
    ),
    "single quotes": (
        lambda t: "\n".join(",".join(f"'{c}'" for c in line.split(",")) for line in t.splitlines()),
        "",
    ),
    "spaces": (lambda t: t.replace(",", " , "), ""),
    "crlf": (lambda t: t.replace("\n", "\r\n"), ""),
    "cr": (lambda t: t.replace("\n", "\r"), ""),
    "mixed line ends": (lambda t: t.replace("\n", "\r\n", 20), ""),
    "no line end": (lambda t: t.rstrip("\n"), ""),
    "row names": (
        lambda t: "\n".join(f'"{n}",{line}' if n else line for n, line in enumerate(t.splitlines())),
        "row names",
    ),
    "index": (
        lambda t: "\n".join(f"{(n * 37) % 61 if n else ''},{line}" for n, line in enumerate(t.splitlines())),
        "row index",
    ),
    "unnamed": (
        lambda t: "\n".join(
            f"{n - 1 if n else 'Unnamed: 0'},{line}" for n, line in enumerate(t.splitlines())
        ),
        "row index",
    ),
    "id": (
        lambda t: "\n".join(
            f"{n * 13 + 500 if n else 'tree_id'},{line}" for n, line in enumerate(t.splitlines())
        ),
        "identifier",
    ),
    "counted": (
        lambda t: "\n".join(f"{n + 100 if n else 'case'},{line}" for n, line in enumerate(t.splitlines())),
        "row index",
    ),
    "uuid": (
        lambda t: "\n".join(
            f"{f'{n * 7919:08x}-ab' if n else 'key'},{line}" for n, line in enumerate(t.splitlines())
        ),
        "identifier",
    ),
    "constant": (
        lambda t: "\n".join(f"{'DE' if n else 'country'},{line}" for n, line in enumerate(t.splitlines())),
        "constant",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_forms_of_the_header(tmp_path: Path, name: str) -> None:
    change, told = HEADERS[name]
    answer = read(tmp_path / "t.csv", change(text(rows())))
    check(answer)
    assert told in said(answer)


@pytest.mark.parametrize(
    "names",
    [
        ("a", "a", "a"),
        ("", "Zahl", "kind"),
        ("x" * 400, "Zahl", "kind"),
        ("0", "1", "2"),
        ("2019", "2020", "2021"),
    ],
)
def test_odd_names_of_columns(tmp_path: Path, names: tuple[str, str, str]) -> None:
    answer = read(tmp_path / "t.csv", text(rows(), header=names))
    assert answer["ok"] and answer["preview"]["num_rows"] == 60, said(answer)
    header = answer["preview"]["header"]
    assert len(set(header)) == 3 and all(0 < len(name) <= 200 for name in header)
    assert answer["preview"]["class_counts"] == dict.fromkeys(KINDS, 20)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_no_header(tmp_path: Path, delimiter: str) -> None:
    answer = read(tmp_path / "t.csv", text(rows(), delimiter, header=None))
    check(answer, used=("column 1", "column 2"), label="column 3", numbers=None)
    assert "no line with column names" in said(answer)


DATES = ("%Y/%m/%d", "%b %d, %Y", "%d %B %Y", "%Y-%m-%d %H:%M:%S.%f+02:00")  # others: test_table_variants.py


@pytest.mark.parametrize("form", DATES)
def test_dates_become_features(tmp_path: Path, form: str) -> None:
    import datetime

    day = datetime.datetime(2019, 11, 5, 13, 45, tzinfo=datetime.UTC)
    table = [[(day + datetime.timedelta(days=23 * n)).strftime(form), *row] for n, row in enumerate(rows())]
    answer = read(tmp_path / "t.csv", text(table, header=("When", "Größe", "Zahl", "Sorte")))
    check(answer, used=("When", "Größe", "Zahl"))
    assert answer["columns"][0]["type"] == "date"
    assert answer["preview"]["read_rows"][1][0] == "2019-11-28", said(answer)
    assert own(tmp_path / "t.csv").spec().feature_names[:4] == (
        "When: year", "When: month", "When: weekday", "When: elapsed days",
    )  # fmt: skip


LABELS: dict[str, tuple[Sequence[str], Sequence[str], str]] = {
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
    answer = read(tmp_path / "t.csv", text(rows(kinds=labels)))
    check(answer, classes=classes)
    suggested = [one["suggested"].get("data_reading", "") for one in answer["problems"]]
    assert any(click in one for one in suggested) if click else not any("label" in one for one in suggested)


def test_clicks_do_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    labels = ("yes", "Yes", "no", "None")
    path.write_text(text(rows(kinds=labels)))
    joined = inspected(path, reading='{"join_labels": true}')
    assert joined["preview"]["class_counts"] == {"None": 15, "no": 15, "Yes": 30}
    gone = inspected(path, reading='{"join_labels": true, "label_missing": true}')
    assert not gone["ok"] and gone["num_to_leave_out"] == 15
    left = inspected(path, reading='{"join_labels": true, "label_missing": true}', skip_unreadable=True)
    assert left["ok"] and left["preview"]["class_counts"] == {"no": 15, "Yes": 30}


def test_columns_are_overridden(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text(rows(lambda n: grouped(n, ","))))
    for kind, words in (
        ("ignored", "ignored"),
        ("category", "category"),
        ("number, decimal comma", "number"),
    ):
        answer = inspected(path, reading=json.dumps({"columns": {"Zahl": kind}}))
        column = answer["columns"][1]
        assert column["is_chosen"] and column["decision"].startswith(words), said(answer)
    check(inspected(path, reading='{"columns": {"Zahl": "number"}}'))
    refused = inspected(path, reading='{"columns": {"Zahl": "colour"}}')
    assert not refused["ok"] and "allowed is" in said(refused)


@pytest.mark.parametrize("sheet", ["", "Second"])
def test_sheets_of_a_spreadsheet(tmp_path: Path, sheet: str) -> None:
    table = [["Größe", "Zahl", "Sorte"], *rows()]
    path = write_xlsx(tmp_path / "t.xlsx", table, ("First", "Second"))
    answer = inspected(path, reading=json.dumps({"sheet": sheet}) if sheet else "")
    check(answer)
    assert f"the sheet '{sheet or 'First'}' is read" in said(answer)


TEXTS = [
    f"{('this film was great', 'what a bad and boring film')[n % 2]} number {n} of the week"
    for n in range(80)
]
CHINESE = [f"{('这个屏幕很好我很满意', '这个屏幕太差了我要退货')[n % 2]}第{n}个" for n in range(80)]


@pytest.mark.parametrize("texts", [TEXTS, CHINESE], ids=["English", "Chinese"])
@pytest.mark.parametrize("order", ["text,label", "id,text,label", "label,text", "id,label,text"])
def test_texts_with_a_label(tmp_path: Path, texts: list[str], order: str) -> None:
    cells = {"text": texts, "label": ["good", "bad"] * 40, "id": [str(3 * n + 100) for n in range(80)]}
    names = order.split(",")
    answer = read(
        tmp_path / "t.csv",
        text([list(row) for row in zip(*(cells[name] for name in names), strict=True)], header=names),
    )
    check(answer, used=("text",), label="label", classes=("good", "bad"), numbers=None, num_rows=80)
    assert answer["task"] == "text_classification"


def test_title_and_body_are_joined_by_a_click(tmp_path: Path) -> None:
    table = [[f"a short title of film {n}", each, ("good", "bad")[n % 2]] for n, each in enumerate(TEXTS)]
    answer = read(tmp_path / "t.csv", text(table, header=("title", "body", "label")))
    (click,) = [one for one in answer["problems"] if "data_reading" in one["suggested"]]
    joined = inspected(tmp_path / "t.csv", reading=click["suggested"]["data_reading"])
    assert [each["name"] for each in joined["columns"] if each["is_used"]] == ["title", "body", "label"]


FINDINGS: dict[str, tuple[Callable[[list[Row]], list[Row]], str]] = {
    "copies": (lambda t: [*t, *t[:3]], "3 of 63 rows are exact copies"),
    "outlier": (lambda t: [*t, ["9999999", "5", "Ulme"]], "far from the others"),
    "sentinel": (
        lambda t: [[("-9999" if n % 20 == 3 else row[0]), *row[1:]] for n, row in enumerate(t)],
        "far from the others",
    ),
    "total": (lambda t: [*t, ["1", "2", "Total"]], "looks like a total"),
    "leak": (
        lambda t: [[row[0], str(KINDS.index(row[2]) * 1000 + n), row[2]] for n, row in enumerate(t)],
        "it alone determines",
    ),
    "rare": (lambda t: [*t, ["5.5", "7", "Linde"]], "class has 1 row"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_before_start(tmp_path: Path, name: str) -> None:
    change, told = FINDINGS[name]
    answer = read(tmp_path / "t.csv", text(change(rows())))
    (one,) = [one for one in answer["problems"] if told in one["message"]]
    assert one["suggested"] and one["action"], said(answer)
    used = inspected(tmp_path / "t.csv", reading=one["suggested"]["data_reading"])
    assert not any(told in each["message"] for each in used["problems"]), said(used)


@pytest.mark.parametrize("wrap", ['"{}"', "'{}'", " {} ", "file://{}", "`{}`"])
def test_paths_as_they_are_copied(tmp_path: Path, wrap: str) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    path = folder / "t 1.csv"
    path.write_text(text(rows()))
    written = str(path).replace(" ", "%20") if "file" in wrap else str(path)
    check(
        inspected(Path(wrap.format(written))) if "file" not in wrap else inspected_text(wrap.format(written))
    )


def inspected_text(path: str) -> dict[str, Any]:
    from trainers.data.dataset import DataOptions
    from trainers.plugins import inspect_data

    return inspect_data.inspect(DataOptions(path=path), prepare=False)
