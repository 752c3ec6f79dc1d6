"""Real-world data files and variants of them, each with the reading that a careful analyst expects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import inspected

# Together 20 s of CPU; test_table_variants and test_image_variants check the same rules one by one.
pytestmark = pytest.mark.slow

FILES = Path(__file__).parent / "files"
ROWS, NUMBER, TEXTS = "tabular_classification", "tabular_regression", "text_classification"
OAK = {"oak", "fir", "elm"}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The expected reading of a file.

    `told` are parts of its messages; `suggested` is the field that a button changes, and a part of its value;
    a file that `is_faulty` is recognized, but cannot be used without a correction.
    """

    task: str = ROWS
    label: str = "kind"
    used: tuple[str, ...] = ("height", "width")
    classes: frozenset[str] | set[str] = frozenset()
    rows: int | None = None
    told: tuple[str, ...] = ()
    suggested: tuple[str, str] = ("", "")
    is_faulty: bool = False


BOUGHT = Reading(label="bought", used=("income", "score"), classes={"no", "yes"}, rows=200, told=("missing",))

EXPECTED = {
    "t01_shuffled_index.csv": Reading(classes=OAK, rows=150, told=("row index, ignored",)),
    "p01_shuffled.parquet": Reading(classes=OAK, rows=150, told=("declares it as the index",)),
    "p06_nested.parquet": Reading(classes=OAK, used=("height",), told=("lists or objects. It is left out",)),
    "t03_header_trailing_comma.csv": Reading(
        task=NUMBER,
        label="texture",
        used=("diagnosis", "radius"),
        rows=120,
        told=("identifier, ignored", "also a column 'diagnosis'"),
        suggested=("label_column", "diagnosis"),
    ),
    "t05c_title_lines.csv": Reading(classes=OAK, rows=90, told=("'Trees of the park'",)),
    "t06_semicolon_us_thousands.csv": Reading(
        task=NUMBER,
        label="price",
        used=("rooms", "size"),
        told=("41,419 → 41419",),
        suggested=("data_reading", "number, decimal comma"),
    ),
    "t06d_currency_percent.csv": Reading(
        task=NUMBER, label="price", used=("discount", "size"), told=("unit %", "$41,419 → 41419")
    ),
    "t07_tab_decimal_comma.tsv": Reading(classes=OAK, told=("0,76 → 0.76",)),
    "t08_class_none.csv": Reading(
        label="disorder",
        used=("age", "hours"),
        classes={"None", "Apnea", "Insomnia"},
        rows=180,
        told=("60 of 180 rows have the label 'None'. It is read as a class",),
        suggested=("data_reading", "label_missing"),
    ),
    "t09_label_case.csv": Reading(
        label="churn",
        used=("a", "b"),
        classes={"no", "No", "NO", "yes", "Yes", "YES"},
        told=("differ in case, spaces or invisible characters only",),
        suggested=("data_reading", "join_labels"),
    ),
    "t10_24_number_classes.csv": Reading(
        label="label", used=tuple(f"pixel{n}" for n in range(1, 7)), classes={str(n) for n in range(24)}
    ),
    "t13_chinese_with_id.csv": Reading(task=TEXTS, label="标签", used=("评论",), classes={"正面", "负面"}),
    "t14_dash_missing.csv": BOUGHT,
    "t16_space_then_quote.csv": Reading(classes=OAK, used=("what", "height")),
    "t20_utf16_bom.csv": Reading(
        label="Sorte", used=("Größe", "Gewicht"), classes={"Eiche", "Föhre", "Rüster"}, told=("UTF-16",)
    ),
    "t21_table.txt": Reading(classes=OAK, rows=120),
    "t21c_SMSCollection": Reading(
        task=TEXTS, label="column 1", used=("column 2",), classes={"ham", "spam"}, rows=300
    ),
    "t26_totals.csv": Reading(
        task=NUMBER,
        label="sales",
        used=("shop", "size"),
        told=("looks like a total",),
        suggested=("data_reading", "leave_out_last"),
    ),
    "u30_text_40_number_labels.csv": Reading(
        task=TEXTS, label="label", used=("text",), classes={str(n) for n in range(40)}, rows=400
    ),
    "u33_survey_long_header.csv": Reading(
        label="Your group",
        used=("Timestamp", "How much do you agree with this sentence"),
        classes={"A", "B"},
        told=("date",),
    ),
    "u34_units.csv": Reading(
        label="label", used=("weight", "share"), classes={"no", "yes"}, told=("unit kg", "unit %")
    ),
    "u38_image_list.csv": Reading(
        task="", told=("names of image files", "Give the folder that contains the images")
    ),
    "x01_crlf.txt": Reading(task="language_modelling", label="", used=(), told=("CR LF",)),
    "i01_16bit_of_12.zip": Reading(
        task="image_classification", label="", used=(), classes={"ring", "square"}, told=("12 bits",)
    ),
    "i02_named_splits.zip": Reading(
        task="image_classification",
        label="",
        used=(),
        classes={"forest", "sea"},
        told=("seg_train is for training, seg_test for validation", "images are not used"),
    ),
    "i04_leftovers.zip": Reading(task="image_classification", label="", used=(), classes={"ring", "square"}),
    "i05_mac_utf8_no_flag.zip": Reading(
        task="image_classification", label="", used=(), classes={"Birnen", "Äpfel"}
    ),
}


def said(answer: dict[str, Any]) -> str:
    """Return all messages of an inspection as one text."""
    problems = [f"{one['where']} {one['message']} {one['hint']}" for one in answer["problems"]]
    return "\n".join(
        [*problems, *(f"{column['name']}: {column['decision']}" for column in answer["columns"])]
    )


def check(answer: dict[str, Any], expected: Reading) -> None:
    told = said(answer)
    assert (answer["task"] or "") == expected.task, told
    assert answer["ok"] == (bool(expected.task) and not expected.is_faulty), told
    for words in expected.told:
        assert words in told
    if not expected.task:
        return
    assert (answer["label_column"] or "") == expected.label, told
    used = [
        column["name"]
        for column in answer["columns"]
        if column["is_used"] and column["name"] != expected.label
    ]
    assert len(used) == len(expected.used) and all(
        name.startswith(start) for name, start in zip(used, expected.used, strict=True)
    ), (used, told)
    if expected.classes:
        assert set(answer["preview"]["class_counts"]) == set(expected.classes)
    if expected.rows is not None:
        assert answer["preview"]["num_rows"] == expected.rows
    field, value = expected.suggested
    assert not field or any(value in str(one["suggested"].get(field, "")) for one in answer["problems"]), told


def test_every_file_has_an_expected_reading() -> None:
    assert {path.name for path in FILES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_file_is_read_as_a_careful_person_reads_it(name: str) -> None:
    check(inspected(FILES / name), EXPECTED[name])
