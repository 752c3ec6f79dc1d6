"""Tests of logs: the end, new lines, and a search that returns the latest lines and the number of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui.run import logs
from trainers.contract.rundir import RunDirectory


def test_a_log_without_end_is_searched_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEARCHED_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("word\n" + "x" * 200 + "\nword again\n")
    found = logs.search(path, "word")
    assert (found["lines"], found["is_whole"]) == (["word again"], False)


def test_stacks_of_the_newest_hang_are_a_log(run: RunDirectory) -> None:
    assert logs.read(logs.newest_stacks(run), -1)["size"] == 0
    run.logs.mkdir()
    for name in ("hang_20261121-174022.txt", "hang_20261121-180000.txt", "hang_20250101-000000.txt"):
        (run.logs / name).write_text(name)
    assert logs.read(logs.newest_stacks(run), -1)["text"] == "hang_20261121-180000.txt"
