"""Tests of a rank's errors before training, caused by an invalid run directory."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from trainers import worker
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory


def test_a_rank_that_cannot_see_what_rank_0_has_made_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(rundir, "MADE_WITHIN_S", 0.05)
    problem = worker.make_run(RunDirectory(tmp_path / "run-1"), "{}")
    assert problem is not None and "config.json" in problem and "check that both machines share" in problem


def test_a_damaged_grant_leaves_the_number_of_threads_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = rundir.create(tmp_path, Config())
    assert worker.granted_threads(run) is None
    run.granted.write_text('{"grant": ')
    with caplog.at_level("WARNING"):
        assert worker.granted_threads(run) is None
    assert "granted.json" in caplog.text


def test_a_rank_waits_for_what_rank_0_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    run = RunDirectory(tmp_path / "run-1")
    rank_0 = threading.Timer(0.1, rundir.make, (run, Config(seed=3)))
    rank_0.start()
    assert worker.make_run(run, json.dumps({"seed": 3})) is None
    assert run.read_config().seed == 3
    rank_0.join()
