"""The named endpoints and the live routes of a served page, without a browser."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, processes_of, wait_until
from tests.ui.conftest import wait_until_finished
from tools.page_driver import Server
from trainers.contract.config import SCHEMA_VERSION, default_values
from trainers.contract.events import read_all
from trainers.contract.rundir import RunDirectory

SMALL = {"dataset": "digits", "model": "mlp", "num_epochs": 100_000, "nproc_per_node": 2}
BY_RULES = {"batch_size": 32, "learning_rate": 0.001, "lr_schedule": "cosine"}


def test_every_endpoint_drives_a_run(client: Client, runs_dir: Path) -> None:
    catalog = client.predict(api_name="/catalog")
    assert {model["name"] for model in catalog["models"]} >= {"mlp", "cnn", "gpt"}
    assert {data["name"] for data in catalog["datasets"]} >= {"fashion_mnist", "digits", "austen"}

    run_id = client.predict(SMALL, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    config = default_values() | BY_RULES | SMALL | {"schema_version": SCHEMA_VERSION}
    assert json.loads(run.config.read_text()) == config

    def status() -> dict[str, Any]:
        answer: dict[str, Any] = client.predict(run_id, api_name="/run_status")
        return answer

    wait_until(
        "the run to be running",
        lambda: status()["state"] == "running" and status()["step"] > 5,
        START_TIMEOUT_S,
    )
    client.predict(run_id, api_name="/checkpoint_run")
    wait_until("a checkpoint", lambda: status()["checkpoints"], ANSWER_TIMEOUT_S)
    client.predict(run_id, api_name="/pause_run")
    wait_until("the pause", lambda: status()["state"] == "paused", ANSWER_TIMEOUT_S)
    client.predict(run_id, api_name="/resume_run")
    wait_until("the run to go on", lambda: status()["state"] == "running", ANSWER_TIMEOUT_S)
    row = client.predict(api_name="/list_runs")[0]
    assert row["run_id"] == run_id, "the newest run comes first"
    assert row["state"] == "running"
    assert {"name", "step", "num_steps"} <= row.keys()
    client.predict(run_id, api_name="/stop_run")
    wait_until("the stop", lambda: status()["state"] == "stopped", ANSWER_TIMEOUT_S)
    assert status()["exit_code"] == 0
    # The process that wrote the status ends shortly afterwards.
    wait_until("no process being left", lambda: processes_of(run) == [], ANSWER_TIMEOUT_S)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"learning_rate": "abc"}, "learning_rate is 'abc'; allowed: a number above 0, at most 100."),
        ({"nproc_per_node": 1000}, "nproc_per_node is 1000; allowed: a whole number from 1 to"),
        ({"batch_size": 4001}, "batch_size is 4001; allowed: at most 4,000"),
        (
            {"model": "gpt"},
            "model is 'gpt'; allowed: a model for fashion_mnist: cnn, mlp, resnet,",
        ),
        ({"batchsize": 4}, "did you mean batch_size?"),
    ],
)
def test_bad_input_names_field_and_value(client: Client, config: dict[str, Any], words: str) -> None:
    before = client.predict(api_name="/list_runs")
    with pytest.raises(AppError) as refused:
        client.predict({"nproc_per_node": 2, "device": "cpu", **config}, api_name="/start_run")
    assert words in str(refused.value)
    assert client.predict(api_name="/list_runs") == before


def test_a_data_set_and_a_model_are_a_configuration_that_learns(client: Client, runs_dir: Path) -> None:
    values = {"dataset": "iris", "model": "linear", "device": "cpu"}
    run = RunDirectory(runs_dir / client.predict(values, api_name="/start_run")["run_id"])
    wait_until_finished(run)
    last = [event for event in read_all(run.events) if event["kind"] == "eval"][-1]
    assert last["metrics"]["accuracy"] > 0.9, "30 flowers: today's defaults ended at 0.50"


def test_a_stream_gives_a_snapshot_then_what_is_new(server: Server, client: Client) -> None:
    # With so few steps per second that a slow client does not receive a new snapshot.
    run_id = client.predict(SMALL | {"model": "vit"}, api_name="/start_run")["run_id"]
    wait_until("steps", lambda: client.predict(run_id, api_name="/run_status")["step"] > 5, START_TIMEOUT_S)
    with urllib.request.urlopen(f"{server.address}/live/runs/{run_id}/stream", timeout=180) as response:
        first = _next_message(response)
        second = _next_message(response)
        while "loss" not in second["traces"]:  # other updates came first
            second = _next_message(response)
    assert first["type"] == "snapshot"
    assert second["type"] == "delta"
    seen = first["traces"]["loss"]["x"]
    new = second["traces"]["loss"]["x"]
    assert seen[0] == 1
    assert all(step > seen[-1] for step in new)
    assert second["cursor"] >= first["cursor"]
    # A client that reconnects sends its cursor and receives only the missing events.
    address = f"{server.address}/live/runs/{run_id}/poll?since={first['cursor']}"
    with urllib.request.urlopen(address, timeout=180) as response:
        again = json.load(response)
    assert again["type"] == "delta"
    assert again["traces"]["loss"]["x"][0] == seen[-1] + 1
    client.predict(run_id, False, api_name="/stop_run")


def _next_message(response: Any) -> dict[str, Any]:
    for line in response:
        if line.startswith(b"data: "):
            message: dict[str, Any] = json.loads(line[6:])
            return message
    raise AssertionError("the stream ended")
