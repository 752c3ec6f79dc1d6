"""Processes killed or suspended on one of two nodes, on every engine: correct states, no process remains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.victims import launcher_of, rank_of, torchrun_of
from tests.harness import create_run, processes_of, wait_until
from tests.integration.conftest import TwoNodes
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.several_nodes.restarts import PATIENCE_OF_STOP_S

TRUE_STATE_S = 30.0
PATIENCE_S = 180.0


@pytest.fixture
def begin(two_nodes: TwoNodes, tmp_path: Path) -> Iterator[Callable[..., RunDirectory]]:
    """Return a function that starts a run and waits for its first step. Kills the runs afterwards."""
    begun: list[RunDirectory] = []

    def make(**values: Any) -> RunDirectory:
        run = create_run(tmp_path, num_nodes=2, nproc_per_node=1, num_epochs=100_000, **values)
        begun.append(run)
        two_nodes.launch(run)
        wait_until(
            "a step", lambda: run.events.exists() and events.read(run.events, 0, ("step",))[0], PATIENCE_S
        )
        wait_until("its status saying so", lambda: liveness.read_status(run).state == "running", PATIENCE_S)
        return run

    yield make
    for run in begun:
        if liveness.is_alive(run):
            two_nodes.engine.kill(run, liveness.read_status(run))


def wait_for_the_end(run: RunDirectory) -> None:
    wait_until("a true state", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)


def assert_nothing_is_left(run: RunDirectory) -> None:
    wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"


# The launchers are the same on every engine, so each victim is killed on one of them; the loss of a launcher
# is also noticed by the engine.
@pytest.mark.parametrize(
    ("two_nodes", "victim"),
    [
        pytest.param("ssh", lambda run: rank_of(run, 0), id="ssh: rank 0"),
        pytest.param("slurm", lambda run: rank_of(run, 1), id="slurm: rank 1, on the other node"),
        pytest.param("slurm", lambda run: torchrun_of(run, 0), id="slurm: torchrun of node 0"),
        pytest.param("ssh", lambda run: torchrun_of(run, 1), id="ssh: torchrun of node 1"),
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
    wait_for_the_end(run)
    status = liveness.read_status(run)
    assert time.monotonic() - killed_at <= TRUE_STATE_S
    assert status.state == "failed" and status.error, status
    assert_nothing_is_left(run)


@pytest.mark.parametrize("two_nodes", ["ssh"], indirect=True)
def test_a_rank_that_is_suspended_on_another_node_is_found_and_named_with_its_host(
    begin: Callable[..., RunDirectory], two_nodes: TwoNodes
) -> None:
    run = begin(hang_timeout_s=5)
    rank_of(run, 1).suspend()
    suspended_at = time.monotonic()
    wait_for_the_end(run)
    status = liveness.read_status(run)
    assert time.monotonic() - suspended_at <= TRUE_STATE_S
    assert status.state == "failed" and status.error
    assert "rank 1 was suspended from outside" in status.error
    assert f"rank 1 ({two_nodes.names[1]}) is at step" in status.error
    (dump,) = run.logs.glob("hang_*.txt")
    assert dump.read_text().count("MainThread") == 2, "the stacks of both nodes"
    assert_nothing_is_left(run)


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)
def test_a_first_launcher_that_is_suspended_is_ended_by_stop(
    begin: Callable[..., RunDirectory], two_nodes: TwoNodes
) -> None:
    run = begin()
    launcher_of(run, 0).suspend()
    stopped_at = time.monotonic()
    two_nodes.engine.stop(run, liveness.read_status(run), save=True)
    wait_for_the_end(run)
    assert time.monotonic() - stopped_at <= TRUE_STATE_S + PATIENCE_OF_STOP_S
    assert liveness.read_status(run).state == "stopped"
    assert_nothing_is_left(run)
