"""What is killed on a node of a Slurm run, and a controller that is down: true states, no process left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.victims import launcher_of, rank_of, torchrun_of
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness, registry
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine

TRUE_STATE_S = 30.0
PATIENCE_S = 120.0
DOWN_S = 12.0


@pytest.fixture
def engine(slurm: SlurmCluster) -> Iterator[SlurmEngine]:
    before = dict(registry._ENGINES)
    made = SlurmEngine(Slurm(slurm.environment))
    registry.register(made)
    yield made
    registry._ENGINES.clear()
    registry._ENGINES.update(before)


@pytest.fixture
def run(engine: SlurmEngine, slurm: SlurmCluster, tmp_path: Path) -> Iterator[RunDirectory]:
    """A run of two nodes at work; whatever is left of it is ended."""
    made = create_run(tmp_path, num_nodes=2, nproc_per_node=1, num_epochs=100_000)
    engine.submit(made, None, token=None)
    wait_until(
        "a step", lambda: made.events.exists() and events.read(made.events, 0, ("step",))[0], PATIENCE_S
    )
    wait_until("its status saying so", lambda: liveness.read_status(made).state == "running", PATIENCE_S)
    yield made
    if liveness.is_alive(made):
        engine.kill(made)
    slurm.wait_until_idle()


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
    wait_until("a true state", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)
    after_s = time.monotonic() - killed_at
    status = liveness.read_status(run)
    assert status.state == "failed" and status.error, status
    assert after_s <= TRUE_STATE_S
    wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"


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
