"""Tests of a run's numbers as files for spreadsheets, scripts and TensorBoard."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from ddp_gui.runs import exports
from tests.golden import tfevents_values as golden
from tests.harness import REPOSITORY
from tests.unit.ddp_gui.events.test_digest import write_events
from trainers.contract.rundir import RunDirectory


def step(number: int, loss: float | None, time: float, **more: Any) -> tuple[float, str, dict[str, Any]]:
    fields = {"step": number, "epoch": 0, "loss": loss, "lr": 0.1, "grad_norm": None}
    rest = {"samples_per_s": 10.0, "step_time_s": 0.1, "data_time_s": 0.01}
    return time, "step", fields | rest | more


def evaluation(number: int, time: float, **metrics: float) -> tuple[float, str, dict[str, Any]]:
    return time, "eval", {"step": number, "epoch": 0, "loss": 0.5, "metrics": metrics}


def start(time: float) -> tuple[float, str, dict[str, Any]]:
    return time, "state", {"state": "starting", "reason": ""}


@pytest.fixture
def resumed(run: RunDirectory) -> RunDirectory:
    """Return a run of four steps that was resumed from step 2, a thousand seconds later."""
    write_events(
        run,
        [
            start(100.0),
            step(1, 4.0, 101.0), step(2, 3.0, 102.0, grad_norm=0.25), evaluation(2, 102.5, accuracy=0.5),
            step(3, 2.0, 103.0), step(4, 1.0, 104.0), evaluation(4, 104.5, accuracy=0.9),
            start(1104.5), step(3, 2.5, 1105.5), step(4, None, 1106.5), evaluation(4, 1107.0, accuracy=0.75),
        ],
    )  # fmt: skip
    return run


def table_of(run: RunDirectory) -> list[dict[str, str]]:
    text = b"".join(exports.csv_pieces(run)).decode()
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_has_one_row_a_step_as_it_counts(resumed: RunDirectory) -> None:
    rows = table_of(resumed)
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["loss"] for row in rows] == ["4.0", "3.0", "2.5", ""]
    assert [row["grad_norm"] for row in rows] == ["", "0.25", "", ""]
    assert [row["validation_accuracy"] for row in rows] == ["", "0.5", "", "0.75"]
    assert [float(row["elapsed_s"]) for row in rows] == [1.0, 2.0, 5.5, 6.5], "without the time in between"


def test_a_run_without_events_gives_empty_files(run: RunDirectory) -> None:
    assert table_of(run) == []
    assert json.loads(b"".join(exports.json_pieces(run, {})))["steps"]["loss"] == []
    assert len(b"".join(exports.tfevents_pieces(run))) == 4 * 10, "the record of the version"


@pytest.mark.parametrize("text", ["x;=cmd|'/c calc'!A0", 'x";"=1+1', "a;\t-1", "；;＝1"])
def test_no_separator_of_any_locale_begins_a_formula(text: str) -> None:
    line = exports.csv_rows([["before", text, 1.5]]).decode().rstrip()
    assert line.startswith('"before","') and line.endswith('",1.5')
    for separator in ";,|\t":
        for cell in line.split(separator):
            assert not cell.lstrip('" \t').startswith(("=", "+", "-", "@", "＝")), cell


IMPORTED = {"words": "2 files differ"}
ROW: dict[str, Any] = {"tags": []} | dict.fromkeys(
    ("run_id", "name", "note", "state", "model", "dataset", "strategy", "nproc_per_node", "step", "num_steps",
     "loss", "best_metric", "created_unix_s", "took_s")
)  # fmt: skip


@pytest.mark.parametrize("words", ["=1+1", "+1", "-1", "@SUM(A1)", "\n=1"])
def test_words_of_people_are_no_formulas(words: str) -> None:
    text = exports.overview(
        [ROW | {"name": words, "tags": [words], "note": words, "loss": -1.5, "imported": IMPORTED}]
    ).decode()
    (read,) = csv.DictReader(io.StringIO(text, newline=""))
    sign = words.lstrip()
    expected = words.removesuffix(sign) + f"'{sign}"
    assert (read["name"], read["tags"], read["note"]) == (expected,) * 3
    assert read["loss"] == "-1.5", "a number is a number"
    assert read["imported"] == "2 files differ"


FILE = REPOSITORY / "tests" / "golden" / "scalars.tfevents"


def test_the_bytes_are_those_of_tensorboard() -> None:
    written = exports.version_record(golden.BEGAN)
    written += b"".join(exports.frame_records([exports.scalar_event(*scalar) for scalar in golden.SCALARS]))
    assert written == FILE.read_bytes()
