"""Faults specific to Slurm: the time limit, a restart of the job, and an unavailable controller."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import create_run, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.slurm.engine import SlurmEngine, job_of

PATIENCE_S = 180.0
# Slurm's two minutes, in case it ignores the earlier start time, plus the start itself.
RESTARTED_S = 180.0
# Longer than squeue may take, and than its last answer is used.
DOWN_S = 18.0


@pytest.fixture
def run(engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path) -> Iterator[RunDirectory]:
    """Yield a training run on two nodes. Kills it afterwards."""
    made = begun(engine, tmp_path)
    yield made
    if liveness.is_alive(made):
        engine.kill(made, liveness.read_status(made))
    slurm.wait_until_idle()


def begun(engine: SlurmEngine, runs_dir: Path, **values: Any) -> RunDirectory:
    """Return a run on two nodes that has completed a step."""
    made = create_run(runs_dir, num_nodes=2, nproc_per_node=1, num_epochs=100_000, **values)
    engine.start(made)
    wait_until(
        "a step", lambda: made.events.exists() and events.read(made.events, 0, ("step",))[0], PATIENCE_S
    )
    wait_until("its status saying so", lambda: liveness.read_status(made).state == "running", PATIENCE_S)
    return made


def wait_until_restarted(run: RunDirectory, slurm: SlurmCluster) -> dict[str, Any]:
    """Return the warning event of a restart, after shortening Slurm's delay of two minutes."""
    job_id = job_of(liveness.read_status(run).handle) or ""

    wait_until("the job waiting", lambda: slurm.is_delayed(job_id), PATIENCE_S)
    start_now = slurm.without_delay(job_id)

    def is_at_work() -> bool:
        start_now()
        return liveness.read_status(run).state == "running"

    try:
        wait_until("the run at work again", is_at_work, RESTARTED_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; {slurm.ask('scontrol', 'show', 'job', job_id)}") from error
    (mark,) = [event for event in events.read_all(run.events) if event.get("code") == "restarted"]
    return mark


def newest_step(run: RunDirectory) -> int:
    return max(event["step"] for event in events.read_all(run.events) if event["kind"] == "step")


def wait_for_the_end(run: RunDirectory) -> None:
    wait_until("a true state", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)


def test_before_its_time_is_over_a_run_is_saved_queued_again_and_resumed(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The test acts for Slurm before the time limit: it sends the requested signal to the batch script."""
    run = begun(engine, tmp_path)
    first = liveness.read_status(run)
    slurm.ask("scancel", "--batch", "--signal=USR1", job_of(first.handle) or "")
    wait_until("the run waiting again", lambda: liveness.read_status(run).state == "queued", PATIENCE_S)
    saved = run.list_checkpoints()[-1].step
    mark = wait_until_restarted(run, slurm)
    assert liveness.read_status(run).handle == first.handle, "the same job"
    said = list(events.read_all(run.events))
    assert "time limit is near" in mark["message"] and f"checkpoint of step {saved:,}" in mark["message"]
    states = [event["state"] for event in said if event["kind"] == "state"]
    assert states[:2] == ["starting", "running"] and "queued" in states and states.count("running") == 2
    wait_until("a step beyond it", lambda: newest_step(run) > saved, PATIENCE_S)
    engine.stop(run, liveness.read_status(run), save=True)
    wait_for_the_end(run)
    assert liveness.read_status(run).state == "stopped"
    slurm.wait_until_idle()


def test_a_run_that_slurm_starts_again_by_itself_goes_on_from_its_newest_checkpoint(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Like NODE_FAIL or preemption without a warning: all processes are killed without notice."""
    run = begun(engine, tmp_path, checkpoint_every_steps=20)
    wait_until("a checkpoint", run.list_checkpoints, PATIENCE_S)
    slurm.ask("scontrol", "requeue", job_of(liveness.read_status(run).handle) or "")
    wait_until("the run waiting again", lambda: liveness.read_status(run).state == "queued", PATIENCE_S)
    mark = wait_until_restarted(run, slurm)
    assert "Slurm has requeued the job" in mark["message"], "what was observed, and no more"
    engine.stop(run, liveness.read_status(run), save=False)
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
        wait_until("its silence", lambda: liveness.silence(run, liveness.read_status(run)), PATIENCE_S)
        assert "Slurm has not answered since " in str(liveness.silence(run, liveness.read_status(run)))
        assert engine.describe(run, liveness.read_status(run)).is_alive is None
        # Stop needs no controller: the command goes through the run directory.
        engine.stop(run, liveness.read_status(run), save=True)
        wait_until("the stop", lambda: liveness.read_status(run).state == "stopped", PATIENCE_S)
    finally:
        controller.send_signal(signal.SIGCONT)
    assert run.list_checkpoints()
