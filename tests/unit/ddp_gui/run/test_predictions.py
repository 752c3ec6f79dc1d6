"""Tests of the requests that the page forwards to a trained model, and of those that it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui import operations
from ddp_gui.run import predictions
from ddp_gui.run.model_process import ModelError
from ddp_gui.run.predictions import PredictApi
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, rundir


class Processes:
    """Answers without a process."""

    def ask(self, person: str, question: dict[str, Any]) -> dict[str, Any]:
        if question.get("inputs") == {"text": "?"}:
            raise ModelError("this model takes: image")
        return {"step": 7, "do": question["do"]}


@pytest.fixture
def api(tmp_path: Path, catalogue) -> PredictApi:
    return PredictApi(store_of(tmp_path, catalogue), Processes())


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    run = rundir.create(tmp_path, config.parse({}))
    leave_checkpoint(run, 7)
    return run.run_id


@pytest.fixture
def asking(api: PredictApi) -> TestClient:
    app = FastAPI()
    app.include_router(operations.make_router(api))
    app.include_router(predictions.make_router(api))
    return TestClient(app)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_nearest": 21}, "num_nearest is '21'; allowed: a whole number from 0 to 20"),
        ({"num_nearest": 0.5}, "num_nearest is '0.5'"),
        ({"checkpoint_step": "latest"}, "checkpoint_step is 'latest'.*, or null"),
        ({"checkpoint_step": float("inf")}, "checkpoint_step is 'inf'"),
        ({"inputs": {"text": "?"}}, "this model takes: image"),
    ],
)
def test_a_wrong_argument_is_named(api: PredictApi, run_id: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        api.predict(run_id, **({"inputs": {}} | values))


def test_absent_is_404_and_impossible_is_409(asking: TestClient, run_id: str, tmp_path: Path) -> None:
    empty = rundir.create(tmp_path, config.parse({})).run_id
    for absent, words in ((empty, "has no checkpoint yet"), ("nothing-1", "there is no run of this id")):
        for answer in (
            asking.get(f"/live/runs/{absent}/model"),
            asking.post(f"/live/runs/{absent}/model/predict", json={}),
            asking.post(f"/live/runs/{absent}/model/generate", json={}),
        ):
            assert answer.status_code == 404 and words in answer.json()["detail"]
    place = f"/live/runs/{run_id}/model"
    assert asking.post(f"{place}/predict", json={"inputs": {"text": "?"}}).status_code == 409
    refused = asking.post(f"{place}/generate", json={"temperature": "hot"})
    assert (refused.status_code, refused.json()["detail"]) == (
        409, "temperature is 'hot'; allowed: a number"
    )  # fmt: skip
    for body in (b"[]", b"{", b"1"):
        assert asking.post(f"{place}/predict", content=body).status_code == 422
    assert asking.post(f"{place}/predict", content=b" " * 1_000_000).status_code == 413
