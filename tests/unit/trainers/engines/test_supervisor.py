"""Tests of the supervisor: the final state of a run, the size of logs, and a directory that is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
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
from trainers.engines.local import supervisor
from trainers.engines.local.supervisor import RundirWatch, Supervisor, cut_long_logs
from trainers.files import json_files


@pytest.fixture
def run(run: RunDirectory) -> RunDirectory:
    """Return a run directory as the page creates it."""
    json_files.write_json_atomically(run.config, Config().to_json())
    run.logs.mkdir()
    return run


def conclude(run: RunDirectory, exit_code: int, *states: str, **more: dict[str, Any]) -> rundir.Status:
    """Return the final status of a run that reported these states and events and then ended."""
    subject = Supervisor(run, None)
    file = EventFile(run.events)
    said = [("state", {"state": state, "reason": ""}) for state in states]
    file.append([(1.0, kind, fields) for kind, fields in [*said, *more.items()]])
    file.close()
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


def test_hint_of_a_run_that_has_done_all_its_steps_says_so(run: RunDirectory) -> None:
    leave_checkpoint(run, 1200)
    status = conclude(run, -9, "running", plan={"num_train": 9, "num_steps": 1200})
    assert status.state == "failed" and status.error is not None
    assert "All 1,200 steps are done and saved: Resume finishes the run." in status.error


def test_run_that_is_killed_after_its_last_save_is_finished(run: RunDirectory) -> None:
    status = conclude(run, -9, "running", checkpoint={"step": 12, "reason": "end"})
    assert (status.state, status.error, status.exit_code) == ("finished", None, -9)
    *_, warning, end = all_events(run)
    assert warning["code"] == "late_failure_warning" and "was killed" in warning["message"]
    assert (end["state"], end["reason"]) == ("finished", warning["message"])


def test_log_that_is_too_long_keeps_its_end_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MAX_BYTES", 10_000)
    monkeypatch.setattr(supervisor, "TAIL_BYTES", 1_000)
    long, short = tmp_path / "rank_0.log", tmp_path / "rank_1.log"
    short.write_text("short\n")
    with long.open("a") as writer:
        writer.writelines(f"line {number}\n" for number in range(5_000))
        writer.flush()
        cut_long_logs(tmp_path)
        writer.write("and on\n")
    lines = long.read_text().splitlines()
    assert long.stat().st_size < 1_200
    assert lines[0] == "[0 MB of this log were removed here to save disk space]"
    assert lines[1].startswith("line 4") and lines[-2:] == ["line 4999", "and on"]
    assert short.read_text() == "short\n"


@pytest.mark.parametrize("what", ["no configuration", "moved", "replaced"])
def test_directory_that_is_not_the_runs_is_gone_at_the_second_look(tmp_path: Path, what: str) -> None:
    run = rundir.create(tmp_path / "runs", Config(name="run"))
    subject = RundirWatch(run)
    if what == "no configuration":
        run.config.unlink()
    else:
        run.path.rename(tmp_path / "elsewhere")
    if what == "replaced":
        shutil.copytree(tmp_path / "elsewhere", run.path)
    assert [subject.is_gone() for _ in range(3)] == [False, True, True]
