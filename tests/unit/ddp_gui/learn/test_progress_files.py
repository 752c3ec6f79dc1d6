"""Progress files: one per user, bounded, and robust against a damaged entry."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from ddp_gui.auth.rights import asked_by
from ddp_gui.learn import progress
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.progress import ProgressFiles, class_csv
from tests.unit.class_of import ANN, BOB
from tests.unit.ddp_gui.learn.lessons import LESSON

pytestmark = pytest.mark.unit

LOCKED = {"prediction": 0, "isLocked": True}


def test_they_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_LESSONS", 3)
    files = ProgressFiles(tmp_path)
    with asked_by(ANN):
        for name in ("a", "b", "c", "a", "d"):
            files.keep(name, LOCKED)
        assert list(files.of_current_user()) == ["c", "a", "d"]


def test_what_somebody_has_damaged_is_left_out(tmp_path: Path) -> None:
    files = ProgressFiles(tmp_path)
    with asked_by(ANN):
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
    with asked_by(ANN):
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
    with asked_by(BOB):
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
