"""A user's script on two machines of a real Slurm cluster, and of two PCs by SSH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.begun import (
    PATIENCE_S,
    assert_nothing_is_left,
    losses_of,
    told,
    wait_for_a_step,
    wait_for_the_end,
)
from tests.harness import REPOSITORY, wait_until
from trainers.contract import code, events, manifests, rundir
from trainers.contract.config import parse
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.base import Engine

SCRIPT = (REPOSITORY / "tests" / "scripts" / "endless.py").read_bytes()
COPIED = (REPOSITORY / "trainers" / "watch" / "to_copy" / "watch.py").read_bytes()
# As tutorials have it, an address that only ranks of one machine could use; and a note of SIGTERM.
BEFORE = b"""
import os, pathlib, signal, sys
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
def note(*_):
    pathlib.Path(f"sigterm_{os.environ['RANK']}").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, note)
"""


def start(two_nodes: Engine, folder: Path, arguments: str) -> RunDirectory:
    """Start the script with one rank on each of two machines; return its run when it trains."""
    raw = {"model": "script", "dataset": "script", "script": "endless.py", "script_arguments": arguments}
    raw |= {"num_nodes": 2, "nproc_per_node": 1, "device": "cpu"}
    files = {"endless.py": BEFORE + SCRIPT, "watch.py": COPIED}
    run = rundir.create(folder, parse(raw), lambda made: code.write(made.path, files))
    two_nodes.start(run)
    wait_for_a_step(run)
    return run


def story(run: RunDirectory) -> str:
    """Return the logs and the last events of a run."""
    logs = [f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in run.logs.glob("*.log")]
    return "\n".join([*logs, json.dumps(list(events.read_all(run.events))[-5:])])


def has_both_losses(event: dict[str, Any]) -> bool:
    return [rank["rank"] for rank in event["ranks"] if rank.get("loss") is not None] == [0, 1]


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)
def test_both_ranks_are_watched_and_stop_at_the_same_step(two_nodes: Engine, tmp_path: Path) -> None:
    run = start(two_nodes, tmp_path, "asks")
    wait_until("the ranks' losses", lambda: any(map(has_both_losses, told(run, "ranks"))), PATIENCE_S)
    two_nodes.stop(run, liveness.read_status(run), save=False)
    wait_for_the_end(run)
    end = told(run, "state")[-1]
    assert (end["state"], end["reason"]) == ("stopped", "The script stopped on request."), story(run)
    assert_nothing_is_left(run)
    ends = {run.rank_log(rank).read_text().strip().splitlines()[-1] for rank in (0, 1)}
    assert len(ends) == 1 and ends.pop().startswith("stopped at "), story(run)
    assert [device["node"] for device in told(run, "devices")[-1]["devices"]] == [0, 1]
    steps = told(run, "step")
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["loss"] is not None for step in steps)
    assert len(set(told(run, "fingerprints")[0]["hashes"])) == 1
    assert told(run, "finding") == [], "no false alarm"


@pytest.mark.parametrize("two_nodes", ["ssh"], indirect=True)
def test_a_script_that_does_not_ask_gets_sigterm_on_both_machines(two_nodes: Engine, tmp_path: Path) -> None:
    run = start(two_nodes, tmp_path, "")
    two_nodes.stop(run, liveness.read_status(run), save=False)
    assert wait_for_the_end(run).state == "stopped", story(run)
    assert_nothing_is_left(run)
    assert sorted(path.name for path in (run.path / "work").glob("sigterm_*")) == ["sigterm_0", "sigterm_1"]


@pytest.mark.parametrize("two_nodes", ["ssh"], indirect=True)
def test_a_script_that_saves_continues_on_two_machines_from_its_checkpoint(
    two_nodes: Engine, tmp_path: Path
) -> None:
    run = start(two_nodes, tmp_path, "asks saves")
    wait_until("Checkpoint being allowed", lambda: any(e["saves"] for e in told(run, "script")), PATIENCE_S)
    asked = run.append_command("checkpoint")
    wait_until("its answer", lambda: asked in [each["id"] for each in told(run, "command")], PATIENCE_S)
    answer = told(run, "command")[-1]
    assert answer["accepted"] and answer["message"].startswith("Saved step "), story(run)
    two_nodes.stop(run, liveness.read_status(run), save=True)
    assert wait_for_the_end(run).state == "stopped", story(run)
    by_button, at_stop = sorted(run.list_checkpoints(), key=lambda item: item.step)
    assert (by_button.reason, at_stop.reason) == ("button", "stop")
    assert all(manifests.find_fault(item) is None for item in (by_button, at_stop))
    assert all((item.path / f"rank_{rank}.pt").is_file() for item in (by_button, at_stop) for rank in (0, 1))
    first = losses_of(run)
    run.events.unlink()
    two_nodes.start(run, by_button.step)
    wait_until("its next steps", lambda: len(told(run, "step")) >= 5, PATIENCE_S)
    steps = losses_of(run)
    both = steps.keys() & first.keys()
    assert both and min(steps) == by_button.step + 1, story(run)
    assert all(steps[step] == first[step] for step in both), "the same bits"
    two_nodes.stop(run, liveness.read_status(run), save=False)
    wait_for_the_end(run)
    assert_nothing_is_left(run)
