"""The page is killed while runs continue: after a restart it finds all runs, including finished ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradio_client import Client

from tests.harness import processes_of, wait_until
from tests.integration.conftest import TwoNodes
from tools import page_driver
from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory

PATIENCE_S = 180.0
SMALL = {"dataset": "digits", "model": "mlp", "device": "cpu", "num_nodes": 1, "nproc_per_node": 2}


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)  # by SSH: test_ssh_unshared.py
def test_a_page_on_a_cluster_that_was_killed_finds_its_runs(
    two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in two_nodes.variables.items():
        monkeypatch.setenv(name, value)
    arguments = (page_driver.NO_STANDBY, *two_nodes.arguments)
    with page_driver.serve(tmp_path, *arguments) as server:
        client = Client(server.address, verbose=False)
        short, long = (
            RunDirectory(
                tmp_path / client.predict(SMALL | {"num_epochs": epochs}, api_name="/start_run")["run_id"]
            )
            for epochs in (20, 100_000)
        )
        for run in (short, long):
            wait_until("a step", lambda run=run: has_a_step(run), PATIENCE_S)  # type: ignore[misc]
        server.process.kill()
        server.process.wait()
    wait_until("the end of one", lambda: recorded_state(short) == "finished", PATIENCE_S)
    assert processes_of(long), "its launchers do not need the page"
    with page_driver.serve(tmp_path, *arguments) as server:
        client = Client(server.address, verbose=False)
        states = {run["run_id"]: run["state"] for run in client.predict(api_name="/list_runs")}
        assert states == {short.run_id: "finished", long.run_id: "running"}
        client.predict(long.run_id, True, api_name="/stop_run")
        wait_until("the other one's stop", lambda: recorded_state(long) == "stopped", PATIENCE_S)
    assert long.list_checkpoints()
    wait_until("no process being left", lambda: not processes_of(long), PATIENCE_S)


def has_a_step(run: RunDirectory) -> bool:
    return run.events.exists() and bool(events.read(run.events, 0, ("step",))[0])


def recorded_state(run: RunDirectory) -> str | None:
    recorded = status_file.read(run.status)
    return None if recorded is None else recorded.state
