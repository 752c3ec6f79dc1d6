"""Runs on the nodes of a cluster: begun, ended, and checked that nothing of them is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness
from trainers.engines.base import Engine

PATIENCE_S = 180.0
TWO_NODES = {"num_nodes": 2, "nproc_per_node": 1, "num_epochs": 100_000}


def begun(engine: Engine, runs_dir: Path, **values: Any) -> RunDirectory:
    """Return an endless run that has completed a step; by default with one rank on each of two nodes."""
    run = create_run(runs_dir, **TWO_NODES | values)
    engine.start(run)
    wait_for_a_step(run)
    return run


def told(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind so far."""
    return events.read(run.events, 0, (kind,))[0] if run.events.exists() else []


def losses_of(run: RunDirectory) -> dict[int, float]:
    """Return the loss of each step; for a repeated step, the later one."""
    return {event["step"]: event["loss"] for event in told(run, "step")}


def wait_for_a_step(run: RunDirectory) -> None:
    """Wait until a run trains and its status says so."""
    wait_until("a step", lambda: told(run, "step"), PATIENCE_S)
    wait_for_state(run, "running")


def wait_for_state(run: RunDirectory, state: str) -> None:
    """Wait for a state of a run."""
    wait_until(f"{run.run_id} being {state}", lambda: liveness.read_status(run).state == state, PATIENCE_S)


def wait_for_the_end(run: RunDirectory) -> Status:
    """Wait until a run has ended; return its status."""
    wait_until("its end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)
    return liveness.read_status(run)


def assert_nothing_is_left(run: RunDirectory, timeout_s: float = PATIENCE_S) -> None:
    """Fail if a process of a run does not end, or if its events have gaps."""
    wait_until("no process being left", lambda: not processes_of(run), timeout_s)
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"
