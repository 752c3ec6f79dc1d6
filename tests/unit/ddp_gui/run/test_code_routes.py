"""Tests of a run as one script, on its page and as downloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.run import downloads
from tests.hostile_words import ACTING
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, manifests, rundir
from trainers.contract.rundir import RunDirectory

PLACE = "/live/runs/{}/code"
FILES = {"train.py": "text/x-python", "train.ipynb": "application/x-ipynb+json"}


@pytest.fixture
def asking(tmp_path: Path, catalogue) -> TestClient:  # noqa: F811
    app = FastAPI()
    app.include_router(downloads.make_code_router(store_of(tmp_path, catalogue)))
    return TestClient(app)


def run_of(tmp_path: Path, **values: object) -> RunDirectory:
    return rundir.create(tmp_path, config.parse({"device": "cpu", "name": ACTING[:100]} | values))


def test_a_run_is_shown_and_downloaded_as_a_script(asking: TestClient, tmp_path: Path) -> None:
    run = run_of(tmp_path, nproc_per_node=2, batch_size=8)
    place = PLACE.format(run.run_id)
    shown = asking.get(place).json()
    assert shown["reason"] is None and shown["num_ranks"] == 2
    assert f"of the run {run.run_id}" in " ".join(shown["train_py"].split())
    assert "BATCH_SIZE = 8" in shown["train_py"]
    expected = {"train.py": shown["train_py"], "train.ipynb": json.dumps(shown["notebook"], indent=1)}
    for name, kind in FILES.items():
        answer = asking.get(f"{place}/{name}")
        assert answer.text == expected[name] and answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'


def test_what_cannot_be_written_is_a_reason_and_no_download(asking: TestClient, tmp_path: Path) -> None:
    place = PLACE.format(run_of(tmp_path, strategy="pipeline", model="vit").run_id)
    assert "Strategy pipeline is not written" in asking.get(place).json()["reason"]
    answer = asking.get(f"{place}/train.py")
    assert answer.status_code == 409 and "Strategy pipeline is not written" in answer.json()["detail"]


def test_a_data_set_that_is_not_there_any_more_is_a_reason(asking: TestClient, tmp_path: Path) -> None:
    run = run_of(tmp_path, dataset="gone")
    assert "Data set gone" in asking.get(PLACE.format(run.run_id)).json()["reason"]


def test_other_names_and_other_runs_are_not_there(asking: TestClient, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    for run_id, name in ((run.run_id, "/train.sh"), ("nobody", ""), ("nobody", "/train.py")):
        assert asking.get(PLACE.format(run_id) + name).status_code == 404


def test_the_threads_are_those_of_the_run_if_they_are_known(asking: TestClient, tmp_path: Path) -> None:
    run = run_of(tmp_path, nproc_per_node=2)
    assert "os.cpu_count()" in asking.get(PLACE.format(run.run_id)).json()["train_py"]
    leave_checkpoint(run, 7)
    manifest = run.checkpoints / "step_7" / manifests.MANIFEST
    known = json.loads(manifest.read_text()) | {"num_threads": 3, "world_size": 2}
    manifest.write_text(json.dumps(known))
    assert "torch.set_num_threads(3)" in asking.get(PLACE.format(run.run_id)).json()["train_py"]
