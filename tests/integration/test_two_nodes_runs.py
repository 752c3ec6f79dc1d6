"""Runs on two nodes: concurrent, on a full disk, resumed on another number of nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.disk import filled
from tests.harness import create_run, processes_of, wait_until
from tests.integration.conftest import TwoNodes
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.several_nodes.reports import LOST_AFTER_S
from trainers.files import json_files

PATIENCE_S = 180.0


def losses(run: RunDirectory) -> dict[int, float]:
    """Return the loss of each step; for a repeated step, the later one."""
    return {event["step"]: event["loss"] for event in events.read_all(run.events) if event["kind"] == "step"}


def wait_for(run: RunDirectory, state: str) -> None:
    wait_until(f"{run.run_id} being {state}", lambda: liveness.read_status(run).state == state, PATIENCE_S)


def make(folder: Path, num_nodes: int, nproc_per_node: int, **values: Any) -> RunDirectory:
    return create_run(folder, num_nodes=num_nodes, nproc_per_node=nproc_per_node, **values)


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)
def test_a_run_of_two_nodes_goes_on_with_the_same_losses_on_one(two_nodes: TwoNodes, tmp_path: Path) -> None:
    whole, parts = (make(tmp_path, 2, 1, max_steps=30, checkpoint_every_steps=10) for _ in range(2))
    for run in (whole, parts):
        two_nodes.launch(run)
    for run in (whole, parts):
        wait_for(run, "finished")
    assert losses(whole) == losses(parts), "and they do not disturb each other"
    numbers = [event["seq"] for event in events.read_all(parts.events)]
    assert numbers == list(range(len(numbers)))
    config = replace(parts.read_config(), num_nodes=1, nproc_per_node=2)
    json_files.write_json_atomically(parts.config, config.to_json())
    parts.events.unlink()
    two_nodes.launch(parts, 20)
    wait_for(parts, "finished")
    assert list(losses(parts)) == list(range(21, 31))
    assert losses(parts) == {step: loss for step, loss in losses(whole).items() if step > 20}


@pytest.mark.parametrize("two_nodes", ["ssh"], indirect=True)  # of Slurm's, the test above has two at once
def test_two_runs_of_one_node_each_at_once_do_not_disturb_each_other(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    two_nodes.leave_one_core_each()  # the rounding of a sum depends on the number of threads
    pair = [make(tmp_path, 1, 1, max_steps=200) for _ in range(2)]
    for run in pair:
        two_nodes.launch(run)
    for run in pair:
        wait_for(run, "finished")
    assert losses(pair[0]) == losses(pair[1]) and len(losses(pair[0])) == 200


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)
def test_a_shared_disk_that_is_full_loses_no_node_and_nothing_that_was_done(two_nodes: TwoNodes) -> None:
    run = make(two_nodes.small_disk, 2, 1, num_epochs=100_000, eval_every_steps=10**6)
    two_nodes.launch(run)
    wait_for(run, "running")
    with filled(two_nodes.small_disk):
        full_until = time.monotonic() + LOST_AFTER_S + 5
        while time.monotonic() < full_until:
            assert liveness.read_status(run).state == "running"
            time.sleep(0.5)
    newest = max(losses(run))
    wait_until("steps being written again", lambda: max(losses(run)) > newest, PATIENCE_S)
    two_nodes.engine.stop(run, liveness.read_status(run), save=True)
    wait_for(run, "stopped")
    assert run.list_checkpoints()
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"
    wait_until("no process being left", lambda: not processes_of(run), PATIENCE_S)
