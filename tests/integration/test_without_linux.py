"""The path of a run on a page whose processes use none of Linux's facilities, as on other systems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

from tests.harness import SMALL, Launcher, create_run, processes_of, wait_until
from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import torchrun_process
from trainers.machine import facilities

PATIENCE_S = 180.0
LONG = SMALL | {"num_epochs": 100_000}


@dataclass(frozen=True, kw_only=True)
class PageWithoutLinux:
    """A page without Linux's facilities, and a run of two ranks that it has started."""

    client: Client
    run: RunDirectory

    def event(self, kind: str, *, number: int = 1) -> dict[str, Any]:
        """Return an event of this kind, by its number in the run's file."""
        return wait_until(f"{kind} {number}", lambda: self.events(kind)[number - 1 :], PATIENCE_S)[0]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of this kind so far."""
        found = events.read_all(self.run.events) if self.run.events.exists() else ()
        return [event for event in found if event["kind"] == kind]

    def wait_for_state(self, state: str) -> None:
        """Wait until the page shows this state."""
        asked = self.run.run_id
        wait_until(
            state,
            lambda: self.client.predict(asked, api_name="/run_status")["state"] == state,
            PATIENCE_S,
        )

    def wait_for_no_process(self) -> None:
        """Wait until no process of the run is left."""
        wait_until("the end of all processes", lambda: not processes_of(self.run), PATIENCE_S)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Turn Linux's facilities off; return the folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv(facilities.WITHOUT, "1")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def page(temporary: Path, tmp_path: Path) -> Iterator[PageWithoutLinux]:
    """Start a page and a run."""
    with page_driver.serve(tmp_path / "runs") as server:
        client = Client(server.address, verbose=False)
        run_id = client.predict(LONG, api_name="/start_run")["run_id"]
        yield PageWithoutLinux(client=client, run=RunDirectory(tmp_path / "runs" / run_id))


def test_a_run_is_started_watched_stopped_resumed_and_loses_a_rank(
    page: PageWithoutLinux, temporary: Path
) -> None:
    client, run = page.client, page.run
    assert page.event("plan")["all_reduce"] == "gloo", "no pipes that other ranks can open"
    page.event("step")
    assert [each["rank"] for each in page.event("ranks")["ranks"]] == [0, 1]
    assert all(each["memory_used_bytes"] > 0 for each in page.event("devices")["devices"])
    there = {path.name.partition("-")[0] for path in temporary.glob("ddp-ranks-*/*")}
    assert {"heartbeats", "rendezvous", "samples", "store"} <= there
    client.predict(run.run_id, api_name="/checkpoint_run")
    assert page.event("checkpoint")["step"] > 0
    client.predict(run.run_id, True, api_name="/stop_run")
    page.wait_for_state("stopped")
    page.wait_for_no_process()
    assert list(temporary.glob("ddp-ranks-*")) == []

    before = run.list_checkpoints()[-1].step
    client.predict(run.run_id, None, None, "keep", api_name="/resume_run")
    page.wait_for_state("running")
    wait_until("a step after it", lambda: page.events("step")[-1]["step"] > before, PATIENCE_S)
    client.predict(run.run_id, 1, api_name="/kill_rank")
    page.wait_for_state("failed")
    error = page.event("error")
    assert (error["code"], error["rank"]) == ("rank_killed", 1)
    page.wait_for_no_process()
    deleted = client.predict([run.run_id], api_name="/delete_runs")["deleted"]
    assert client.predict([deleted[0]["bin_id"]], api_name="/empty_bin")["num_runs"] == 1
    assert not run.path.exists()


def test_ranks_end_with_a_supervisor_that_is_killed(temporary: Path, launcher: Launcher) -> None:
    """Linux's kernel would do it; here each process watches its parent."""
    live = launcher.start_run(create_run(launcher.runs_dir), environment={facilities.WITHOUT: "1"})
    live.pause_at_start()
    assert len(live.ranks()) == 2
    live.supervisor.kill()
    live.reap()
    live.wait_for_no_process(PATIENCE_S)
    assert len(list(temporary.glob("ddp-ranks-*"))) == 1
    with torchrun_process.folder_for_ranks(num_workers=0):
        assert len(list(temporary.glob("ddp-ranks-*"))) == 1, "the next run removes its folder"
