"""Progress of learners: validation, merging, files and the table of the class."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.auth.rights import acting_as
from ddp_gui.learn import progress
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.progress import ProgressFiles, class_csv
from tests.harness import REPOSITORY
from tests.unit.class_of import ANN, BOB
from tests.unit.ddp_gui.learn.lessons import LESSON

LOCKED = {"prediction": 0, "isLocked": True}


def test_they_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_LESSONS", 3)
    files = ProgressFiles(tmp_path)
    with acting_as(ANN):
        for name in ("a", "b", "c", "a", "d"):
            files.keep(name, LOCKED)
        assert list(files.of_current_user()) == ["c", "a", "d"]


def test_what_somebody_has_damaged_is_left_out(tmp_path: Path) -> None:
    files = ProgressFiles(tmp_path)
    with acting_as(ANN):
        files.keep("batch", LOCKED)
        files.keep("seeds", LOCKED)
        path = tmp_path / ".class" / "progress" / "ann.json"
        content = json.loads(path.read_text())
        content["lessons"]["batch"]["progress"]["runs"] = "all"
        path.write_text(json.dumps(content))
        assert list(files.of_current_user()) == ["seeds"]
        path.write_text("[1, 2")
        assert files.of_current_user() == {}
        files.keep("seeds", LOCKED)


def test_the_teachers_table_has_a_row_for_each_lesson_and_no_formula(tmp_path: Path) -> None:
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / "batch.md").write_text(LESSON)
    files = ProgressFiles(tmp_path)
    attempt = {"choice": "=cmd()", "runId": "run-1"}
    with acting_as(ANN):
        told = LOCKED | {
            "isStarted": True,
            "runs": ["run-1"],
            "answers": {"0": 0},
            "attempts": {"0": [attempt]},
        }
        files.keep("batch", told)
        files.keep("code:two-ranks", {"isStarted": True, "numTries": 3, "isDone": True, "code": "=1"})
        files.keep("code:shard-the-data", {"code": "import torch"})  # not run, so not in the table
        files.keep("gone", LOCKED | {"prediction": [-1.0] * 9, "poll": "k3m9x2ab"})
    with acting_as(BOB):
        files.keep("batch", {"prediction": 1})  # not locked, so not in the table
    rows = list(
        csv.DictReader(io.StringIO(class_csv(files.everybody(), Library([folder]).read()[0]).decode()))
    )
    assert [row["person"] for row in rows] == ["ann"] * 3
    assert [row["lesson"] for row in rows] == ["batch", "code:two-ranks", "gone"]
    assert rows[0]["runs"] == "run-1" and rows[0]["num_answered"] == "1" and rows[0]["predicted_at"]
    assert (rows[1]["num_tries"], rows[1]["prediction"], rows[0]["num_tries"]) == ("3", "", "")
    assert rows[1]["started_at"] and rows[1]["done_at"]
    assert rows[2]["prediction"] == "'-1 -1 -1 -1 -1 -1 -1 -1 -1"
    assert not any(str(cell).startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())


# The tests of `assets/js/learn/progress.js` read the same cases.
CASES = json.loads((REPOSITORY / "tests" / "unit" / "progress_cases.json").read_text())


def made(**values: Any) -> progress.Progress:
    return progress.parse_record(progress.empty_record() | values)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_progress_of_two_pages_is_merged_as_the_browser_does_it(case: dict[str, Any]) -> None:
    known, told = made(**case["known"]), made(**case["told"])
    found = progress.merge_records(known, told)
    assert {name: found[name] for name in case["joined"]} == case["joined"]
    assert progress.merge_records(found, told) == found, "nothing is there twice"


@pytest.mark.parametrize(
    "values",
    [
        {"round": -1}, {"round": 1.5}, {"round": True}, {"poll": "../../x"}, {"poll": 3}, {"prediction": "a"},
        {"prediction": 6}, {"prediction": [1.0] * 8}, {"prediction": [float("nan")] * 9}, {"isLocked": 1},
        {"isLocked": True}, {"runs": ["run"] * 7}, {"runs": ["../run"]}, {"runs": "run"},
        {"attempts": {"x": []}},
        {"attempts": {"0": [{"choice": "a"}]}}, {"attempts": {"0": [{"choice": "a" * 201, "runId": "r"}]}},
        {"attempts": {"0": [{"choice": "a", "runId": "r"}] * 51}}, {"answers": {"0": 7}},
        {"answers": {"99": 0}},
        {"answers": []}, {"isDone": None},
    ],
)  # fmt: skip
def test_what_is_no_progress_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="progress: "):
        made(**values)
