"""A real page forwards a real run to a service that is down at first; the page and its process are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
from gradio_client import Client

from tests.fake_mlflow import fake_mlflow
from tests.harness import all_events, wait_until
from tools import page_driver
from trainers.contract.rundir import RunDirectory
from trainers.forward import state

PATIENCE_S = 180.0
SMALL = {"dataset": "digits", "model": "mlp", "device": "cpu", "nproc_per_node": 2, "num_epochs": 20}


def test_a_run_is_forwarded_whatever_is_killed(tmp_path: Path) -> None:
    with fake_mlflow() as service:
        service.mode = "500"
        config = SMALL | {"forward_to": "mlflow", "forward_address": service.address}
        with page_driver.serve(tmp_path, page_driver.NO_STANDBY) as page:
            client = Client(page.address, verbose=False)
            run = RunDirectory(tmp_path / client.predict(config, api_name="/start_run")["run_id"])
            wait_until("a failure", lambda: shown(run).get("error"), PATIENCE_S)
            page.process.kill()
            page.process.wait()
        (first,) = followers_of(run)
        with page_driver.serve(tmp_path, page_driver.NO_STANDBY):
            assert followers_of(run) == [first], "a restart of the page neither ends nor repeats it"
            os.kill(first.pid, signal.SIGKILL)
            first.wait(PATIENCE_S)
        assert not shown(run)["is_alive"]
        wait_until("the run's end", lambda: not run.is_locked(), PATIENCE_S)
        service.mode = "ok"
        by_hand = psutil.Popen(shown(run)["command"], shell=True)
        assert by_hand.wait(PATIENCE_S) == 0
        steps = [event["step"] for event in all_events(run) if event["kind"] == "step"]
        assert service.steps() == steps and len(steps) > 100
        (stored,) = service.runs.values()
        assert stored["status"] == "FINISHED" and stored["params"]["num_epochs"] == "20"
        assert shown(run)["phase"] == "done"


def shown(run: RunDirectory) -> dict[str, object]:
    return state.page_state(run, "mlflow")


def followers_of(run: RunDirectory) -> list[psutil.Process]:
    """Return the processes that forward a run."""
    found = psutil.process_iter(["cmdline"])
    # None: the process has just ended.
    return [
        each for each in found if (each.info["cmdline"] or [])[-2:] == ["trainers.forward", str(run.path)]
    ]
