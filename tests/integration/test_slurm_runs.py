"""Runs on a cluster beside each other, on a full disk, and resumed on another number of nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.several_nodes.ranks_of_nodes import LOST_AFTER_S
from trainers.engines.slurm.engine import SlurmEngine
from trainers.files import json_files

PATIENCE_S = 60.0


def losses(run: RunDirectory) -> dict[int, float]:
    """Return the loss of each step; of one that was done twice, the later."""
    return {event["step"]: event["loss"] for event in events.read_all(run.events) if event["kind"] == "step"}


def wait_for(run: RunDirectory, state: str) -> None:
    wait_until(f"{run.run_id} being {state}", lambda: liveness.read_status(run).state == state, PATIENCE_S)


def make(folder: Path, num_nodes: int, nproc_per_node: int, **values: Any) -> RunDirectory:
    return create_run(folder, num_nodes=num_nodes, nproc_per_node=nproc_per_node, **values)


def test_a_run_of_two_nodes_goes_on_with_the_same_losses_on_one(engine: SlurmEngine, tmp_path: Path) -> None:
    whole, parts = (make(tmp_path, 2, 1, max_steps=30, checkpoint_every_steps=10) for _ in range(2))
    for run in (whole, parts):
        engine.submit(run, None, token=None)
    for run in (whole, parts):  # two at once
        wait_for(run, "finished")
    assert losses(whole) == losses(parts), "and they do not disturb each other"
    numbers = [event["seq"] for event in events.read_all(parts.events)]
    assert numbers == list(range(len(numbers)))
    config = replace(parts.read_config(), num_nodes=1, nproc_per_node=2)
    json_files.write_json_atomically(parts.config, config.to_json())
    parts.events.unlink()
    engine.submit(parts, 20, token=None)
    wait_for(parts, "finished")
    assert list(losses(parts)) == list(range(21, 31))
    assert losses(parts) == {step: loss for step, loss in losses(whole).items() if step > 20}


def test_a_shared_disk_that_is_full_loses_no_node_and_nothing_that_was_done(
    engine: SlurmEngine, slurm: SlurmCluster
) -> None:
    run = make(slurm.small_disk, 2, 1, num_epochs=100_000, eval_every_steps=10**6)
    engine.submit(run, None, token=None)
    wait_for(run, "running")
    ballast = slurm.small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        fill(file)
        full_until = time.monotonic() + LOST_AFTER_S + 5
        while time.monotonic() < full_until:
            assert liveness.read_status(run).state == "running"
            time.sleep(0.5)
    ballast.unlink()
    newest = max(losses(run))
    wait_until("steps being written again", lambda: max(losses(run)) > newest, PATIENCE_S)
    engine.stop(run, save=True)
    wait_for(run, "stopped")
    assert run.list_checkpoints()
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"
    wait_until("no process being left", lambda: not processes_of(run), PATIENCE_S)


def fill(file: Any) -> None:
    """Write until nothing fits any more."""
    size = 2**20
    while size:
        try:
            file.write(b"x" * size)
        except OSError:
            size //= 2
