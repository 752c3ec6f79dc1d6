"""Tests of the routes that show which rank saw which sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.run import samples
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, rundir
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

CONFIG = {"nproc_per_node": 2, "batch_size": 32, "device": "cpu", "num_epochs": 3}


def write_plan(run: RunDirectory, num_train: int, **dealing: Any) -> None:
    fields: dict[str, Any] = {"num_train": num_train, "num_steps": 100}
    file = EventFile(run.events)
    file.append([(100.0, "plan", fields | ({"dealing": dealing} if dealing else {}))])
    file.close()


@pytest.fixture
def asking(tmp_path: Path, catalogue) -> TestClient:  # noqa: F811
    app = FastAPI()
    app.include_router(samples.make_router(store_of(tmp_path, catalogue)))
    return TestClient(app)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return rundir.create(tmp_path, config.parse(CONFIG))


def place(run: RunDirectory, sample: str = "") -> str:
    return f"/live/runs/{run.run_id}/samples{sample}"


def test_with_very_many_samples_there_are_the_numbers_alone(asking: TestClient, run: RunDirectory) -> None:
    write_plan(run, 3_000_000_000)
    said = asking.get(place(run)).json()
    assert (said["ways"], said["picture"], said["by"]) == ([], None, None)
    assert said["pieces"][0]["num_steps"] == 46_875_000
    assert asking.get(place(run, "/5")).status_code == 422


@pytest.mark.parametrize("wrong", [{"epoch": 3}, {"epoch": -1}, {"by": "rank"}, {"first": "x"}])
def test_what_cannot_be_is_refused(asking: TestClient, run: RunDirectory, wrong: dict[str, Any]) -> None:
    write_plan(run, 1437)
    assert asking.get(place(run), params=wrong).status_code == 422
    assert asking.get(place(run, "/1437")).status_code == 422


@pytest.mark.parametrize("field", ["batch_size", "num_accumulated", "num_replicas"])
def test_a_plan_that_was_tampered_with_breaks_nothing(
    asking: TestClient, run: RunDirectory, field: str
) -> None:
    dealing = {"step": 0, "epoch": 0, "samples_in_epoch": 0}
    dealing |= {"batch_size": 32, "num_accumulated": 1, "num_replicas": 2}
    write_plan(run, 1437, **dealing | {field: 0})
    assert asking.get(place(run)).status_code == 404
    write_plan(run, 1437, **dealing | {field: 2**60})
    assert asking.get(place(run)).status_code in (200, 404)
