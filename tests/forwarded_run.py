"""Runs with made-up events, to be forwarded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainers.contract import config, rundir
from trainers.contract.events import EventFile, State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status

BEGAN_UNIX_S = 1_700_000_000.0
Entry = tuple[float, str, dict[str, Any]]


def make_run(runs_dir: Path, num_steps: int, state: State = "finished", **values: Any) -> RunDirectory:
    """Return a run with this number of steps, an evaluation every 10 steps, a checkpoint and its end."""
    raw = {"model": "mlp", "dataset": "digits", "name": "mine", **values}
    run = rundir.create(runs_dir, config.parse(raw))
    append(run, [(0.0, "state", {"state": "running", "reason": "Training."}), *steps(1, num_steps)])
    if state != "running":
        end(run, state)
    return run


def steps(first: int, last: int) -> list[Entry]:
    """Return the events of these steps."""
    found: list[Entry] = []
    for step in range(first, last + 1):
        fields = {"step": step, "epoch": 0, "loss": 1 / step, "lr": 0.001, "grad_norm": None}
        timing = {"samples_per_s": 500.0, "step_time_s": 0.1, "data_time_s": 0.01}
        found.append((step * 0.1, "step", fields | timing))
        if step % 10 == 0:
            metrics = {"loss": 0.5, "metrics": {"accuracy": step / 1000}, "confusion": None}
            found.append((step * 0.1, "eval", {"step": step, "epoch": 0, **metrics}))
    return found


def append(run: RunDirectory, entries: list[Entry]) -> None:
    """Append events; their times are seconds after the run's begin."""
    file = EventFile(run.events)
    file.append([(BEGAN_UNIX_S + seconds, kind, fields) for seconds, kind, fields in entries])
    file.close()


def end(run: RunDirectory, state: State = "finished") -> None:
    """Append a checkpoint and the final state, and write the status."""
    about = {"path": "checkpoints/step_1", "size_bytes": 1234, "duration_s": 0.1, "stall_s": 0.0}
    checkpoint = {"step": 1, **about, "reason": "end", "removed": []}
    append(run, [(900.0, "checkpoint", checkpoint), (900.0, "state", {"state": state, "reason": "Over."})])
    run.write_status(Status(state=state, ended_unix_s=time.time()))
