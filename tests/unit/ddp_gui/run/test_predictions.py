"""Tests of the requests that the page forwards to a trained model, and of those that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
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
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, rundir

TOKENS = [{"token": {"text": text, "probability": 0.5, "others": []}} for text in "ab"]
LAST = {"is_stopped": False, "step": 7}


class Processes:
    """Records the requests, and answers without a process."""

    def __init__(self) -> None:
        self.questions: list[dict[str, Any]] = []
        self.num_closed = 0

    def ask(self, person: str, question: dict[str, Any]) -> dict[str, Any]:
        self.questions.append(question)
        if question.get("inputs") == {"text": "?"}:
            raise ModelError("this model takes: image")
        return {"step": 7, "do": question["do"]}

    def stream(self, person: str, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.questions.append(question)
        try:
            yield from [*TOKENS, LAST]
        finally:
            self.num_closed += 1


def test_only_answers_of_large_models_want_a_gpu(
    api: PredictApi, run_id: str, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for least, wants_gpu in ((predictions.GPU_BYTES, False), (1, True)):
        monkeypatch.setattr(predictions, "GPU_BYTES", least)
        api.predict(run_id, {"text": "a"})
        api.generate(run_id)
        assert [question["wants_gpu"] for question in processes.questions[-2:]] == [wants_gpu] * 2
        api.ask(run_id, None, {"do": "describe"})
        assert not processes.questions[-1]["wants_gpu"], "a page was opened, and nobody asked yet"


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def api(tmp_path: Path, catalogue, processes: Processes) -> PredictApi:  # noqa: F811
    return PredictApi(store_of(tmp_path, catalogue), processes)  # type: ignore[arg-type]


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


def test_an_answer_has_the_nearest_samples_only_if_they_are_wanted(
    api: PredictApi, run_id: str, processes: Processes
) -> None:
    assert api.predict(run_id, {"text": "a"}) == {"run_id": run_id, "step": 7, "do": "predict"}
    found = api.predict(run_id, {"text": "a"}, num_nearest=3)
    assert found["nearest"]["do"] == "nearest"
    assert [question["do"] for question in processes.questions] == ["predict", "predict", "nearest"]
    # The same checkpoint, although a newer one may have been saved in between.
    assert [question["step"] for question in processes.questions] == [None, None, 7]


def test_a_text_is_joined_for_a_program_and_sent_token_by_token_to_a_browser(
    api: PredictApi, run_id: str, asking: TestClient, processes: Processes
) -> None:
    assert api.generate(run_id, "x") == {"run_id": run_id, "step": 7, "prompt": "x", "text": "ab"}
    answer = asking.post(f"/live/runs/{run_id}/model/generate", json={"prompt": "x", "top_k": 2.0})
    lines = answer.text.splitlines()
    assert len(lines) == 3 and '"is_stopped":false' in lines[-1]
    assert processes.questions[1]["options"] == {
        "temperature": 0.8, "top_k": 2, "num_tokens": 200, "seed": 0
    }  # fmt: skip
    assert processes.num_closed == 2


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


def test_what_is_not_there_is_404_and_what_cannot_be_is_409(
    asking: TestClient, run_id: str, tmp_path: Path
) -> None:
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
