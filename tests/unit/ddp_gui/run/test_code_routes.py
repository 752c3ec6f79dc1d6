"""Tests of a run as one script, on its page and as downloads."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.run import downloads
from tests.hostile_words import ACTING
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory

PLACE = "/live/runs/{}/code"


@pytest.fixture
def asking(tmp_path: Path, catalogue) -> TestClient:  # noqa: F811
    app = FastAPI()
    app.include_router(downloads.make_code_router(store_of(tmp_path, catalogue)))
    return TestClient(app)


def run_of(tmp_path: Path, **values: object) -> RunDirectory:
    return rundir.create(tmp_path, config.parse({"device": "cpu", "name": ACTING[:100]} | values))


def test_what_cannot_be_written_is_a_reason_and_no_download(asking: TestClient, tmp_path: Path) -> None:
    place = PLACE.format(run_of(tmp_path, strategy="pipeline", model="vit").run_id)
    assert "Strategy pipeline cannot be exported" in asking.get(place).json()["reason"]
    answer = asking.get(f"{place}/train.py")
    assert answer.status_code == 409 and "Strategy pipeline cannot be exported" in answer.json()["detail"]


def test_other_names_and_other_runs_are_not_there(asking: TestClient, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    for run_id, name in ((run.run_id, "/train.sh"), ("nobody", ""), ("nobody", "/train.py")):
        assert asking.get(PLACE.format(run_id) + name).status_code == 404
