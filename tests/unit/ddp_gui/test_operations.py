"""One declaration gives an operation its endpoint, its route, its checks and its errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui import operations
from ddp_gui.auth import rights
from ddp_gui.operations import Rate, Route, operation
from ddp_gui.runs.runs import RunStore
from tests.unit.class_of import ANN, BOB
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory


class Greeter:
    """Three operations: open to all, of a run, and of a teacher."""

    def __init__(self, folder: Path) -> None:
        self.store = RunStore(folder, SimpleNamespace(get=lambda: None))

    @operation(rate=Rate("a greeting", 3), route=Route(path="/live/who"))
    def who(self, greeting: str = "hello", times: int = 1) -> dict[str, Any]:
        """Return a greeting and the name of the current user."""
        return {"words": " ".join([greeting] * times), "name": rights.current_user().name}

    @operation(run="change", route=Route(path="/live/{run_id}/shout", max_bytes=99, not_an_object="no"))
    async def shout(self, run: RunDirectory, words: str) -> str:
        """Return the run's id and the words."""
        return f"{run.run_id}: {words.upper()}"

    @operation(teacher="close the school")
    def close(self) -> bool:
        """Return True."""
        return True


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Create a run of Ann and a run of Bob; return their ids."""
    made = [rundir.create(tmp_path, config.parse({})) for _ in range(2)]
    for run, name in zip(made, ("ann", "bob"), strict=True):
        rights.note_owner(run, name)
    return [run.run_id for run in made]


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """Serve the operations to Ann, one of them also queued."""
    greeter = Greeter(tmp_path)
    with gr.Blocks() as demo:
        operations.register(greeter)
    inside = FastAPI()
    inside.include_router(operations.make_router(greeter))
    app = gr.mount_gradio_app(inside, demo, path="/")

    async def gate(scope: Any, receive: Any, send: Any) -> None:
        with rights.acting_as(ANN):
            await app(scope | {rights.SCOPE_KEY: ANN}, receive, send)

    return TestClient(gate)


def ask(client: TestClient, name: str, *values: Any) -> Any:
    answer = client.post(f"/gradio_api/run/{name}", json={"data": values}).json()
    return answer["data"][0] if "data" in answer else answer["error"]


def test_callers_see_the_parameters_without_the_request_and_the_id_of_a_run(client: TestClient) -> None:
    found = client.get("/gradio_api/info").json()["named_endpoints"]
    assert [each["parameter_name"] for each in found["/who"]["parameters"]] == ["greeting", "times"]
    assert found["/who"]["parameters"][1]["parameter_default"] == 1
    assert [each["parameter_name"] for each in found["/shout"]["parameters"]] == ["run_id", "words"]


def test_rights_values_and_rate_are_checked_before_the_method(client: TestClient, runs: list[str]) -> None:
    own, others = runs
    assert ask(client, "shout", own, "a") == f"{own}: A"
    assert ask(client, "shout", others, "a").endswith("belongs to bob: only bob or a teacher can change it")
    assert ask(client, "shout", "none-1", "a") == "run_id is 'none-1', but there is no run of this id"
    assert ask(client, "close") == "only a teacher can close the school"
    assert ask(client, "who", ["hi"], 1) == "greeting is a list, which is not allowed"
    for _ in range(3):
        ask(client, "who", "hi", 1)
    assert ask(client, "who", "hi", 1).startswith("you requested a greeting 3 times within 60 seconds")


def test_a_route_answers_as_the_endpoint_does(client: TestClient, runs: list[str]) -> None:
    own, others = runs
    assert client.get("/live/who?times=2").json() == {"words": "hello hello", "name": "ann"}
    assert client.post(f"/live/{own}/shout", json={"words": "b"}).json() == f"{own}: B"
    refused = {
        others: (403, f"run {others} belongs to bob: only bob or a teacher can change it"),
        "none-1": (404, "run_id is 'none-1', but there is no run of this id"),
    }
    for run_id, expected in refused.items():
        answer = client.post(f"/live/{run_id}/shout", json={"words": "b"})
        assert (answer.status_code, answer.json()["detail"]) == expected
    for body, status in ((b"[]", 422), (b"{", 422), (b" " * 100, 413)):
        assert client.post(f"/live/{own}/shout", content=body).status_code == status


def test_one_person_starts_so_many_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, api, pace = [100.0], SimpleNamespace(), Rate("a start", 3)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(10):
        pace.count(api)  # no limit without a login
    with rights.acting_as(ANN):
        for _ in range(3):
            pace.count(api)
        with pytest.raises(ValueError, match="a start 3 times within 60 seconds: wait 60 seconds"):
            pace.count(api)
    with rights.acting_as(BOB):
        pace.count(api)
    now[0] += 61
    with rights.acting_as(ANN):
        pace.count(api)
