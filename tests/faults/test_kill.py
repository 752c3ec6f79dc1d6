"""Kill -9 of each process of a run: how it ends, what is said, what is left."""

from __future__ import annotations

import time

import pytest

from tests.harness import Launcher, LiveRun, processes_of, wait_until
from trainers import checkpoint
from trainers.contract.rundir import Status

DEADLINE_S = 15.0


def start_and_let_it_save(launcher: Launcher) -> LiveRun:
    """Start a run that saves several times a second, so that a kill may well hit a save."""
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=100, eval_every_steps=10**6)
    live.wait_for("checkpoint")
    return live


def wait_for_bad_end(live: LiveRun) -> Status:
    """Return the final status; fail when that takes 15 s, or leaves a process or half a checkpoint."""
    killed_at = time.monotonic()
    status = live.wait_for_end(DEADLINE_S)
    live.wait_for_no_process(DEADLINE_S - (time.monotonic() - killed_at))
    listed = live.run.list_checkpoints()
    assert listed, "the run had saved before it was killed"
    for item in listed:
        checkpoint.verify(live.run, item.step)
    return status


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_ends_the_run_as_failed_and_is_named(launcher: Launcher, rank: int) -> None:
    live = start_and_let_it_save(launcher)
    live.rank(rank).kill()
    status = wait_for_bad_end(live)
    assert status.state == "failed", live.story()
    assert status.error is not None and f"Rank {rank} was killed (SIGKILL)" in status.error, live.story()
    assert status.exit_code not in (0, None)
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("rank_killed", rank)
    newest = max(live.run.list_checkpoints(), key=lambda item: item.saved_unix_s).step
    assert "smaller batch" in error["hint"]
    assert f"Resume goes on from the checkpoint of step {newest}." in error["hint"]
    assert live.states()[-1] == "failed"
    assert [event["seq"] for event in live.events()] == list(range(len(live.events())))


def test_killed_torchrun_ends_the_run_as_failed_and_takes_its_ranks_with_it(launcher: Launcher) -> None:
    live = start_and_let_it_save(launcher)
    live.torchrun().kill()
    status = wait_for_bad_end(live)
    assert status.state == "failed", live.story()
    assert (
        status.error is not None and "torchrun, the parent of all ranks, was killed (SIGKILL)" in status.error
    )
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("torchrun_killed", None)


def test_killed_supervisor_leaves_no_process_and_the_run_can_be_resumed(launcher: Launcher) -> None:
    live = start_and_let_it_save(launcher)
    assert len(processes_of(live.run)) >= 4, "supervisor, torchrun and two ranks"
    live.supervisor.kill()
    status = wait_for_bad_end(live)
    assert status.state == "lost"
    assert status.error is not None and "killed, or the machine restarted" in status.error

    newest = live.run.list_checkpoints()[-1].step
    (live.run.checkpoints / ".step_7.partial").mkdir()
    again = launcher.start_run(live.run, resume_step=newest)
    again.wait_for("step", lambda event: event["step"] > newest)
    assert not (live.run.checkpoints / ".step_7.partial").exists(), "what a killed save left is cleared away"
    wait_until("status.json saying running", lambda: again.run.read_status().state == "running", 10.0)
    again.run.append_command("stop", save=False)
    assert again.wait_for_end().state == "stopped", again.story()
