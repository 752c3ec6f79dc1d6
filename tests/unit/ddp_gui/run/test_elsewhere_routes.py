"""Tests of a run's files for other machines, on the page and as downloads."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.launch.elsewhere import TARGETS
from ddp_gui.run import downloads
from tests.hostile_words import ACTING
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, rundir

PLACE = "/live/runs/{}/elsewhere"


@pytest.fixture
def asking(tmp_path: Path, catalogue) -> TestClient:  # noqa: F811
    app = FastAPI()
    app.include_router(downloads.make_elsewhere_router(store_of(tmp_path, catalogue)))
    return TestClient(app)


@pytest.fixture
def place(tmp_path: Path) -> str:
    values = {"nproc_per_node": 2, "batch_size": 8, "device": "cpu", "name": ACTING[:100]}
    return PLACE.format(rundir.create(tmp_path, config.parse(values)).run_id)


def test_two_machines_are_usual_and_the_numbers_follow_from_them(asking: TestClient, place: str) -> None:
    said = asking.get(place).json()
    assert (said["num_nodes"], said["num_ranks"], said["global_batch"], said["gpus"]) == (2, 4, 32, False)
    said = asking.get(place, params={"num_nodes": 1, "gpus": True}).json()
    assert (said["num_nodes"], said["num_ranks"], said["global_batch"], said["gpus"]) == (1, 2, 16, True)
    assert [file["name"] for file in said["files"]] == list(TARGETS)
    assert "--gpus-per-node=2" in said["files"][1]["text"]


def test_a_run_of_several_machines_keeps_their_number(asking: TestClient, tmp_path: Path) -> None:
    run = rundir.create(tmp_path, config.parse({"num_nodes": 3}))
    assert asking.get(PLACE.format(run.run_id)).json()["num_nodes"] == 3


@pytest.mark.parametrize("target", TARGETS)
def test_a_download_is_what_is_shown_under_a_plain_name(asking: TestClient, place: str, target: str) -> None:
    query = {"num_nodes": 3, "gpus": False}
    shown = {file["name"]: file["text"] for file in asking.get(place, params=query).json()["files"]}
    answer = asking.get(f"{place}/{target}", params=query)
    assert answer.text == shown[target] and answer.headers["content-type"].startswith("text/plain")
    run_id = place.split("/")[3]
    name = f"{run_id}{TARGETS[target].ending}"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'


@pytest.mark.parametrize("query", [{"num_nodes": 0}, {"num_nodes": 1025}, {"num_nodes": "x"}, {"gpus": "?"}])
def test_what_cannot_be_is_refused(asking: TestClient, place: str, query: dict[str, str]) -> None:
    for path in (place, f"{place}/slurm"):
        assert asking.get(path, params=query).status_code == 422


def test_a_file_or_a_run_that_is_not_there_is_not_found(asking: TestClient, place: str) -> None:
    answer = asking.get(f"{place}/kubernetes")
    assert answer.status_code == 404 and "torchrun, slurm" in answer.json()["detail"]
    assert asking.get(PLACE.format("none-1")).status_code == 404
