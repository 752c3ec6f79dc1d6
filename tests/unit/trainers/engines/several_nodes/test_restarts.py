"""A run that its engine starts again: who wants it to go on, from where, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import create_run
from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.reports import NodesFolder

LOST = Cause(code="node_lost", message="Node 1 is lost.", hint="Look.")
OTHER = Cause(code="exception", message="Rank 0 raised.", hint="Look.")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(tmp_path, num_nodes=2, nproc_per_node=1)


@pytest.fixture
def folder(run: RunDirectory) -> NodesFolder:
    made = NodesFolder(run, "7-0")
    made.make()
    return made


def in_state(run: RunDirectory, state: State) -> None:
    ended = 5.0 if state in events.ENDED_STATES else None
    run.write_status(Status(state=state, engine="slurm", handle={"job_id": "7"}, ended_unix_s=ended))


def close(
    run: RunDirectory, folder: NodesFolder, left: int = 3, cause: Cause | None = None, **more: bool
) -> str:
    """End a start; return the state that the run has then."""
    by_system = more.get("by_system", False)
    restarts.close_start(run, folder, left, cause, by_system=by_system, others_end_within_s=2.0)
    assert (folder.path / "over").read_text() == "2\n" and folder.end_within_s() == 2.0
    recorded = status_file.read(run.status)
    assert recorded is not None
    assert (folder.path / "again").exists() is (recorded.state == "queued")
    return recorded.state


def test_a_run_that_was_warned_is_saved_and_waits_again(run: RunDirectory, folder: NodesFolder) -> None:
    in_state(run, "running")
    restarts.leave(run, folder, "Its time is over.", 2)
    (command,) = run.commands.read_text().splitlines()
    assert (
        '"name":"stop"' in command.replace(" ", "")
        and "Its time is over. So it is saved and goes on" in command
    )
    in_state(run, "stopped")
    assert close(run, folder) == "queued"
    (said,) = events.read_all(run.events)
    assert said["state"] == "queued" and said["reason"].startswith("Its time is over.")
    assert restarts.why_started_again(run) == "Its time is over."
    assert not restarts.has_ended(run)


def test_without_restarts_left_or_after_a_persons_stop_it_ends(
    run: RunDirectory, folder: NodesFolder
) -> None:
    in_state(run, "stopping")
    restarts.leave(run, folder, "Its time is over.", 2)
    in_state(run, "stopped")
    assert close(run, folder) == "stopped", "a person had stopped it"
    in_state(run, "running")
    restarts.leave(run, folder, "Its time is over.", 0)
    assert "it is saved; Resume goes on" in run.commands.read_text()
    in_state(run, "stopped")
    assert close(run, folder, left=0) == "stopped"
    assert restarts.has_ended(run)


@pytest.mark.parametrize(
    ("cause", "left", "state"), [(LOST, 1, "queued"), (LOST, 0, "failed"), (OTHER, 3, "failed")]
)
def test_a_lost_node_is_no_reason_to_give_up_and_an_error_of_the_run_is(
    run: RunDirectory, folder: NodesFolder, cause: Cause, left: int, state: str
) -> None:
    in_state(run, "failed")
    assert close(run, folder, left, cause) == state


def test_a_run_that_finished_although_it_was_warned_is_finished(
    run: RunDirectory, folder: NodesFolder
) -> None:
    in_state(run, "running")
    restarts.leave(run, folder, "Its time is over.", 2)
    in_state(run, "finished")
    assert close(run, folder) == "finished" and restarts.has_ended(run)


def test_what_slurm_ended_by_a_signal_goes_on_if_slurm_starts_it_again(
    run: RunDirectory, folder: NodesFolder
) -> None:
    in_state(run, "stopped")
    assert close(run, folder, by_system=True) == "stopped"
    assert not restarts.has_ended(run)
    assert restarts.why_started_again(run) == restarts.NOT_SAID
    restarts.say_started_again(run, 1, restarts.NOT_SAID, None)
    (mark,) = [event for event in events.read_all(run.events) if event["kind"] == "warning"]
    assert mark["code"] == "restarted" and "from the beginning" in mark["message"]
    assert restarts.step_to_resume_from(run) is None
