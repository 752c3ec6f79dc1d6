"""Named endpoints know the current user, whether Gradio queues them or not."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.auth import rights
from ddp_gui.auth.rights import EVERYBODY, Person
from ddp_gui.gradio_routes.endpoints import as_current_user, register

ANN = Person(name="ann", role="student")


def who(greeting: str = "hello", times: int = 1) -> dict[str, Any]:
    """Return a greeting and the name of the current user."""
    return {"words": " ".join([greeting] * times), "name": rights.current_user().name}


@pytest.fixture
def client() -> TestClient:
    """Serve two endpoints to Ann, one of them queued."""
    with gr.Blocks() as demo:
        register(who)
        gr.api(as_current_user(who), api_name="queued", queue=True)
    app = gr.mount_gradio_app(FastAPI(), demo, path="/")

    async def gate(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {rights.SCOPE_KEY: ANN}, receive, send)

    return TestClient(gate)


def test_an_endpoint_knows_who_asks(client: TestClient) -> None:
    answer = client.post("/gradio_api/run/who", json={"data": ["hi", 2]})
    assert answer.json()["data"] == [{"words": "hi hi", "name": "ann"}]


def test_a_queued_one_too(client: TestClient) -> None:
    with client:
        asked = client.post("/gradio_api/call/queued", json={"data": ["hi", 1]}).json()
        answer = client.get(f"/gradio_api/call/queued/{asked['event_id']}").text
    assert '"name": "ann"' in answer


def test_the_request_is_no_parameter_of_the_endpoint(client: TestClient) -> None:
    about = client.get("/gradio_api/info").json()["named_endpoints"]["/who"]
    assert [parameter["parameter_name"] for parameter in about["parameters"]] == ["greeting", "times"]
    assert about["parameters"][1]["parameter_default"] == 1


def test_outside_of_a_request_everybody_asks() -> None:
    assert rights.current_user() == EVERYBODY
    with rights.asked_by(ANN):
        assert rights.current_user() == ANN
    assert rights.current_user() == EVERYBODY
