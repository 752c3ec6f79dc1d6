"""Runs on two nodes of Slurm and of SSH: their results, faults of nodes and processes, and those of Slurm."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.begun import (
    PATIENCE_S,
    assert_nothing_is_left,
    begun,
    losses_of,
    wait_for_state,
    wait_for_the_end,
)
from tests.cluster.disk import filled
from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.ssh_hosts import PCS
from tests.cluster.victims import launcher_of, rank_of, torchrun_of
from tests.harness import create_run, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.base import Engine
from trainers.engines.several_nodes.reports import LOST_AFTER_S
from trainers.engines.several_nodes.restarts import STOP_LIMIT_S
from trainers.engines.slurm.engine import SlurmEngine, job_id_of
from trainers.files import json_files

TRUE_STATE_S = 30.0
# Slurm's two minutes, in case it ignores the earlier start time, plus the start itself.
RESTARTED_S = 180.0
# Longer than squeue may take, and than its last answer is used.
DOWN_S = 18.0


def test_a_run_of_two_nodes_goes_on_with_the_same_losses_on_one(engine: SlurmEngine, tmp_path: Path) -> None:
    values = {"num_nodes": 2, "nproc_per_node": 1, "max_steps": 30, "checkpoint_every_steps": 10}
    whole, parts = (create_run(tmp_path, **values) for _ in range(2))
    for run in (whole, parts):
        engine.start(run)
    for run in (whole, parts):
        wait_for_state(run, "finished")
    assert losses_of(whole) == losses_of(parts), "and they do not disturb each other"
    assert_nothing_is_left(parts)
    config = replace(parts.read_config(), num_nodes=1, nproc_per_node=2)
    json_files.write_json_atomically(parts.config, config.to_json())
    parts.events.unlink()
    engine.start(parts, 20)
    wait_for_state(parts, "finished")
    assert list(losses_of(parts)) == list(range(21, 31))
    assert losses_of(parts) == {step: loss for step, loss in losses_of(whole).items() if step > 20}


def test_a_shared_disk_that_is_full_loses_no_node_and_nothing_that_was_done(
    engine: SlurmEngine, slurm: SlurmCluster
) -> None:
    run = begun(engine, slurm.small_disk, eval_every_steps=10**6)
    with filled(slurm.small_disk):
        full_until = time.monotonic() + LOST_AFTER_S + 5
        while time.monotonic() < full_until:
            assert liveness.read_status(run).state == "running"
            time.sleep(0.5)
    newest = max(losses_of(run))
    wait_until("steps being written again", lambda: max(losses_of(run)) > newest, PATIENCE_S)
    engine.stop(run, liveness.read_status(run), save=True)
    wait_for_state(run, "stopped")
    assert run.list_checkpoints()
    assert_nothing_is_left(run)


@pytest.fixture
def begin(two_nodes: Engine, tmp_path: Path) -> Iterator[Callable[..., RunDirectory]]:
    """Return a function that starts a run and waits for its first step. Kills the runs afterwards."""
    made: list[RunDirectory] = []

    def make(**values: Any) -> RunDirectory:
        made.append(begun(two_nodes, tmp_path, **values))
        return made[-1]

    yield make
    for run in made:
        if liveness.is_alive(run):
            two_nodes.kill(run, liveness.read_status(run))


# The launchers are the same on every engine, so each victim is killed on one of them; the loss of a launcher
# is also noticed by the engine.
@pytest.mark.parametrize(
    ("two_nodes", "victim"),
    [
        pytest.param("slurm", lambda run: rank_of(run, 1), id="slurm: rank 1, on the other node"),
        pytest.param("slurm", lambda run: torchrun_of(run, 0), id="slurm: torchrun of node 0"),
        pytest.param("slurm", lambda run: launcher_of(run, 1), id="slurm: launcher of node 1"),
        pytest.param("ssh", lambda run: launcher_of(run, 1), id="ssh: launcher of node 1"),
    ],
    indirect=["two_nodes"],
)
def test_what_is_killed_ends_the_run_with_a_true_state_and_no_process_left(
    begin: Callable[..., RunDirectory], victim: Callable[[RunDirectory], psutil.Process]
) -> None:
    run = begin()
    victim(run).kill()
    killed_at = time.monotonic()
    status = wait_for_the_end(run)
    assert time.monotonic() - killed_at <= TRUE_STATE_S
    assert status.state == "failed" and status.error, status
    assert_nothing_is_left(run, TRUE_STATE_S)


@pytest.mark.parametrize("two_nodes", ["ssh"], indirect=True)
def test_a_rank_that_is_suspended_on_another_node_is_found_and_named_with_its_host(
    begin: Callable[..., RunDirectory],
) -> None:
    run = begin(hang_timeout_s=5)
    rank_of(run, 1).suspend()
    suspended_at = time.monotonic()
    status = wait_for_the_end(run)
    assert time.monotonic() - suspended_at <= TRUE_STATE_S
    assert status.state == "failed" and status.error
    assert "rank 1 was suspended from outside" in status.error
    assert f"rank 1 ({PCS[1]}) is at step" in status.error
    (dump,) = run.logs.glob("hang_*.txt")
    assert dump.read_text().count("MainThread") == 2, "the stacks of both nodes"
    assert_nothing_is_left(run, TRUE_STATE_S)


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)
def test_a_first_launcher_that_is_suspended_is_ended_by_stop(
    begin: Callable[..., RunDirectory], two_nodes: Engine
) -> None:
    run = begin()
    launcher_of(run, 0).suspend()
    stopped_at = time.monotonic()
    two_nodes.stop(run, liveness.read_status(run), save=True)
    status = wait_for_the_end(run)
    assert time.monotonic() - stopped_at <= TRUE_STATE_S + STOP_LIMIT_S
    assert status.state == "stopped"
    assert_nothing_is_left(run, TRUE_STATE_S)


def test_before_its_time_is_over_a_run_is_saved_queued_again_and_resumed(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The test acts for Slurm before the time limit: it sends the requested signal to the batch script."""
    run = begun(engine, tmp_path)
    first = liveness.read_status(run)
    slurm.ask("scancel", "--batch", "--signal=USR1", job_id_of(first.handle) or "")
    wait_for_state(run, "queued")
    saved = run.list_checkpoints()[-1].step
    job_id = job_id_of(first.handle) or ""
    wait_until("the job waiting", lambda: slurm.is_delayed(job_id), PATIENCE_S)
    start_now = slurm.without_delay(job_id)  # otherwise Slurm waits for two minutes

    def is_at_work() -> bool:
        start_now()
        return liveness.read_status(run).state == "running"

    wait_until("the run at work again", is_at_work, RESTARTED_S)
    assert liveness.read_status(run).handle == first.handle, "the same job"
    said = list(events.read_all(run.events))
    (mark,) = [event for event in said if event.get("code") == "restarted"]
    assert "time limit is near" in mark["message"] and f"checkpoint of step {saved:,}" in mark["message"]
    states = [event["state"] for event in said if event["kind"] == "state"]
    assert states[:2] == ["starting", "running"] and "queued" in states and states.count("running") == 2
    wait_until("a step beyond it", lambda: max(losses_of(run)) > saved, PATIENCE_S)


def test_a_controller_that_is_down_changes_nothing_about_a_run(
    engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = begun(engine, tmp_path)
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
        wait_for_state(run, "stopped")
    finally:
        controller.send_signal(signal.SIGCONT)
    assert run.list_checkpoints()
