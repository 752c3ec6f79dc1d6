"""What is killed on a node of a Slurm run, and a controller that is down: true states, no process left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.victims import launcher_of, rank_of, torchrun_of
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.several_nodes.stop_watch import PATIENCE_OF_STOP_S
from trainers.engines.slurm.engine import SlurmEngine, job_of

TRUE_STATE_S = 30.0
PATIENCE_S = 60.0
DOWN_S = 30.0


@pytest.fixture
def run(engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path) -> Iterator[RunDirectory]:
    """A run of two nodes at work; whatever is left of it is ended."""
    made = begun(engine, tmp_path)
    yield made
    if liveness.is_alive(made):
        engine.kill(made)
    slurm.wait_until_idle()


def begun(engine: SlurmEngine, runs_dir: Path, **values: Any) -> RunDirectory:
    """Return a run of two nodes that has done a step."""
    made = create_run(runs_dir, num_nodes=2, nproc_per_node=1, num_epochs=100_000, **values)
    engine.submit(made, None, token=None)
    wait_until(
        "a step", lambda: made.events.exists() and events.read(made.events, 0, ("step",))[0], PATIENCE_S
    )
    wait_until("its status saying so", lambda: liveness.read_status(made).state == "running", PATIENCE_S)
    return made


def wait_until_restarted(run: RunDirectory, slurm: SlurmCluster) -> dict[str, Any]:
    """Return the mark of a restart, for which Slurm would otherwise take two minutes."""
    job_id = job_of(liveness.read_status(run).handle) or ""

    def waits() -> bool:
        return (
            slurm.ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%T %r") == "PENDING BeginTime\n"
        )

    wait_until("the job waiting", waits, PATIENCE_S)
    # A job that starts again in the same second is refused by the nodes ("Job credential revoked").
    slurm.ask("scontrol", "update", f"JobId={job_id}", "StartTime=now+4")
    wait_until("the run at work again", lambda: liveness.read_status(run).state == "running", PATIENCE_S)
    (mark,) = [event for event in events.read_all(run.events) if event.get("code") == "restarted"]
    return mark


def newest_step(run: RunDirectory) -> int:
    return max(event["step"] for event in events.read_all(run.events) if event["kind"] == "step")


def wait_for_the_end(run: RunDirectory) -> None:
    wait_until("a true state", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(lambda run: rank_of(run, 0), id="rank 0"),
        pytest.param(lambda run: rank_of(run, 1), id="rank 1, on the other node"),
        pytest.param(lambda run: torchrun_of(run, 0), id="torchrun of node 0"),
        pytest.param(lambda run: torchrun_of(run, 1), id="torchrun of node 1"),
        pytest.param(lambda run: launcher_of(run, 1), id="launcher of node 1"),
    ],
)
def test_what_is_killed_ends_the_run_with_a_true_state_and_no_process_left(
    run: RunDirectory, victim: Callable[[RunDirectory], psutil.Process]
) -> None:
    killed_at = time.monotonic()
    victim(run).kill()
    wait_for_the_end(run)
    after_s = time.monotonic() - killed_at
    status = liveness.read_status(run)
    assert status.state == "failed" and status.error, status
    assert after_s <= TRUE_STATE_S
    wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"


def test_a_rank_that_is_suspended_on_another_node_is_found_and_named_with_its_host(
    engine: SlurmEngine, tmp_path: Path
) -> None:
    run = begun(engine, tmp_path, hang_timeout_s=5)
    rank_of(run, 1).suspend()
    suspended_at = time.monotonic()
    wait_for_the_end(run)
    status = liveness.read_status(run)
    assert status.state == "failed" and status.error
    assert "rank 1 was suspended from outside" in status.error and "rank 1 (node2) is at step" in status.error
    assert time.monotonic() - suspended_at <= TRUE_STATE_S
    (dump,) = run.logs.glob("hang_*.txt")
    assert dump.read_text().count("MainThread") == 2, "the stacks of both nodes"
    wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)


def test_a_head_that_is_suspended_is_ended_by_stop_and_nothing_is_left(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = begun(engine, tmp_path)
    launcher_of(run, 0).suspend()
    stopped_at = time.monotonic()
    engine.stop(run, save=True)
    wait_for_the_end(run)
    assert time.monotonic() - stopped_at <= TRUE_STATE_S + PATIENCE_OF_STOP_S
    assert liveness.read_status(run).state == "stopped"
    wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)
    slurm.wait_until_idle()


def test_before_its_time_is_over_a_run_is_saved_queued_again_and_resumed(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """What Slurm does then is done by hand: the batch script gets the signal that it asked for."""
    run = begun(engine, tmp_path)
    first = liveness.read_status(run)
    slurm.ask("scancel", "--batch", "--signal=USR1", job_of(first.handle) or "")
    wait_until("the run waiting again", lambda: liveness.read_status(run).state == "queued", PATIENCE_S)
    saved = run.list_checkpoints()[-1].step
    mark = wait_until_restarted(run, slurm)
    assert liveness.read_status(run).handle == first.handle, "the same job"
    said = list(events.read_all(run.events))
    assert "time is over" in mark["message"] and f"checkpoint of step {saved:,}" in mark["message"]
    states = [event["state"] for event in said if event["kind"] == "state"]
    assert states[:2] == ["starting", "running"] and "queued" in states and states.count("running") == 2
    wait_until("a step beyond it", lambda: newest_step(run) > saved, PATIENCE_S)
    engine.stop(run, save=True)
    wait_for_the_end(run)
    assert liveness.read_status(run).state == "stopped"
    slurm.wait_until_idle()


def test_a_run_that_slurm_starts_again_by_itself_goes_on_from_its_newest_checkpoint(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """As after NODE_FAIL, or preemption without a warning: nothing was said, all processes are killed."""
    run = begun(engine, tmp_path, checkpoint_every_steps=20)
    wait_until("a checkpoint", run.list_checkpoints, PATIENCE_S)
    slurm.ask("scontrol", "requeue", job_of(liveness.read_status(run).handle) or "")
    wait_until("the run waiting again", lambda: liveness.read_status(run).state == "queued", PATIENCE_S)
    mark = wait_until_restarted(run, slurm)
    assert "a node failed, or a job of higher priority" in mark["message"]
    engine.stop(run, save=False)
    wait_for_the_end(run)
    slurm.wait_until_idle()


def test_a_controller_that_is_down_changes_nothing_about_a_run(
    run: RunDirectory, engine: SlurmEngine, slurm: SlurmCluster
) -> None:
    controller = psutil.Process(int((slurm.folder / "slurmctld.pid").read_text()))
    controller.send_signal(signal.SIGSTOP)
    try:
        until, states = time.monotonic() + DOWN_S, set()
        while time.monotonic() < until:
            states.add(liveness.read_status(run).state)
        assert states == {"running"}
        assert engine.is_alive(run, liveness.read_status(run).handle) is None
        # Stop needs no controller: the command goes through the run's folder.
        engine.stop(run, save=True)
        wait_until("the stop", lambda: liveness.read_status(run).state == "stopped", PATIENCE_S)
    finally:
        controller.send_signal(signal.SIGCONT)
    assert run.list_checkpoints()
