"""Tests of logs: the end, new lines, and a search that returns the latest lines and the number of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui.run import logs
from trainers.contract.rundir import RunDirectory


def test_the_end_then_what_came_since(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.log"
    assert logs.read(path, -1) == {"text": "", "offset": 0, "size": 0}
    path.write_text("one\n")
    first = logs.read(path, -1)
    path.write_text("one\ntwo\n")
    assert first["text"] + logs.read(path, first["offset"])["text"] == "one\ntwo\n"


def test_all_words_must_be_in_a_line_and_capitals_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("Epoch 1 done\nepoch 2 done at STEP 5\nstep 9: caf\xe9\n".encode("latin-1"))
    assert logs.search(path, "step epoch")["lines"] == ["epoch 2 done at STEP 5"]
    assert logs.search(path, "EPOCH")["num_found"] == 2
    assert logs.search(path, "9:")["lines"] == ["step 9: caf\ufffd"]
    assert logs.search(path, "  ") == {"lines": [], "num_found": 0, "is_whole": True}
    assert logs.search(tmp_path / "none", "a")["num_found"] == 0


def test_of_many_hits_the_newest_are_given_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(2000)))
    found = logs.search(path, "line")
    assert (found["num_found"], len(found["lines"])) == (2000, logs.MAX_LINES_FOUND)
    assert found["lines"][-1] == "line 1999"


def test_a_log_without_end_is_searched_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEARCHED_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("word\n" + "x" * 200 + "\nword again\n")
    found = logs.search(path, "word")
    assert (found["lines"], found["is_whole"]) == (["word again"], False)


def test_one_endless_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a" * 100_000)
    assert len(logs.search(path, "aa")["lines"][0]) == logs.MAX_LINE_BYTES


def test_stacks_of_the_newest_hang_are_a_log(run: RunDirectory) -> None:
    assert logs.read(logs.newest_stacks(run), -1)["size"] == 0
    run.logs.mkdir()
    for name in ("hang_20261121-174022.txt", "hang_20261121-180000.txt", "hang_20250101-000000.txt"):
        (run.logs / name).write_text(name)
    assert logs.read(logs.newest_stacks(run), -1)["text"] == "hang_20261121-180000.txt"
