"""A cluster node loses power. Uses a separate cluster, because Slurm takes long to trust the node again."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.engines import liveness
from trainers.engines.slurm.engine import SlurmEngine

TRUE_STATE_S = 30.0
PATIENCE_S = 180.0


def test_a_node_whose_power_fails_is_named_and_the_run_waits_for_slurm_to_start_it_again(
    slurm: SlurmCluster, engine: SlurmEngine, tmp_path: Path
) -> None:
    """The cable is removed first, so that the other node cannot observe the end of the processes."""
    run = create_run(tmp_path, num_nodes=2, nproc_per_node=1, num_epochs=100_000, checkpoint_every_steps=20)
    engine.submit(run, None, token=None)
    wait_until("the run at work", lambda: liveness.read_status(run).state == "running", PATIENCE_S)
    there = {process.pid for process in processes_of(run)}
    with slurm.without_cable("node2"):
        on_node = there.intersection(slurm.processes_on("node2"))
        assert len(on_node) >= 3, "its launcher, torchrun and rank"
        for pid in on_node:
            psutil.Process(pid).kill()
        failed_at = time.monotonic()
        wait_until("a true state", lambda: liveness.read_status(run).state == "queued", PATIENCE_S)
        assert time.monotonic() - failed_at <= TRUE_STATE_S
        wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)
        # The controller does the same after some minutes.
        slurm.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=power")
    slurm.ask("scontrol", "update", "NodeName=node2", "State=RESUME")
    slurm.wait_until_idle()
    (error,) = [event for event in events.read_all(run.events) if event["kind"] == "error"]
    assert error["code"] == "node_lost"
    assert "Node 1 (node2, rank 1) has not been heard for" in error["message"]
    engine.stop(run, save=False)
    assert liveness.read_status(run).state == "stopped"
