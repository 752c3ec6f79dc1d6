"""Tests of the supervisor's decisions without processes: the final state of a run."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_gui.launch import launcher
from tests.harness import all_events
from tests.unit.checkpoints import leave_checkpoint
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.supervisor import Supervisor
from trainers.files import json_files


@pytest.fixture
def run(run: RunDirectory) -> RunDirectory:
    """Return a run directory as the page creates it."""
    json_files.write_json_atomically(run.config, Config().to_json())
    run.logs.mkdir()
    return run


def say(run: RunDirectory, *states: str) -> None:
    """Let rank 0 report these states."""
    file = EventFile(run.events)
    file.append([(1.0, "state", {"state": state, "reason": ""}) for state in states])
    file.close()


def conclude(run: RunDirectory, exit_code: int, *states: str, hang: Cause | None = None) -> rundir.Status:
    """Return the final status of a run that reported these states and ended with this exit code."""
    subject = Supervisor(run, None)
    subject._guard.fatal = hang
    say(run, *states)
    subject._follow_events()
    subject._conclude(exit_code)
    return liveness.read_status(run)


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_crash_on_the_way_out_takes_a_good_end_not_back(run: RunDirectory, state: str) -> None:
    status = conclude(run, 1, "running", state)
    assert (status.state, status.error) == (state, None)


def test_rank_that_crashes_after_a_stop_request_is_a_failure_that_is_told(run: RunDirectory) -> None:
    """The stop was requested but never carried out, so nothing was saved."""
    (run.logs / "torchrun.log").write_text(
        "      rank      : 1 (local_rank: 1)\n      exitcode  : -9 (pid: 7)\n"
    )
    status = conclude(run, 1, "running", "stopping")
    assert status.state == "failed"
    assert status.error is not None and "Rank 1 was killed" in status.error


def test_hint_names_the_checkpoint_that_resume_really_takes(run: RunDirectory) -> None:
    for step in (20, 30):
        leave_checkpoint(run, step)
    (run.checkpoints / "step_30" / "optimizer.pt").write_bytes(b"damaged")
    error = conclude(run, 0, "running").error
    words = "The checkpoint of step 30 is damaged. Resume continues from the checkpoint of step 20."
    assert error is not None and words in error
    assert launcher.pick_checkpoint(run, None).step == 20
    (run.checkpoints / "step_20" / "optimizer.pt").unlink()
    error = conclude(run, 0, "running").error
    assert error is not None and "No checkpoint of this run is complete: start the run again." in error


def say_what(run: RunDirectory, *words: tuple[str, dict[str, Any]]) -> None:
    """Let rank 0 report these events."""
    file = EventFile(run.events)
    file.append([(1.0, kind, fields) for kind, fields in words])
    file.close()


def test_hint_of_a_run_that_has_done_all_its_steps_says_so(run: RunDirectory) -> None:
    leave_checkpoint(run, 1200)
    subject = Supervisor(run, None)
    say_what(run, ("plan", {"num_train": 9, "num_steps": 1200}))
    say(run, "running")
    subject._follow_events()
    subject._conclude(-9)
    status = liveness.read_status(run)
    assert status.state == "failed" and status.error is not None
    assert "All 1,200 steps are done and saved: Resume finishes the run." in status.error


def test_run_that_is_killed_after_its_last_save_is_finished(run: RunDirectory) -> None:
    subject = Supervisor(run, None)
    state = ("state", {"state": "running", "reason": ""})
    say_what(run, state, ("checkpoint", {"step": 12, "reason": "end"}))
    subject._follow_events()
    subject._conclude(-9)
    status = liveness.read_status(run)
    assert (status.state, status.error, status.exit_code) == ("finished", None, -9)
    *_, warning, end = all_events(run)
    assert warning["code"] == "late_failure_warning" and "was killed" in warning["message"]
    assert (end["state"], end["reason"]) == ("finished", warning["message"])
