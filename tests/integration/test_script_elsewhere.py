"""A user's script on two machines of a real Slurm cluster, and of two PCs by SSH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import REPOSITORY, processes_of, wait_until
from tests.integration.conftest import TwoNodes
from trainers.contract import code, events, manifests, rundir
from trainers.contract.config import parse
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

PATIENCE_S = 180.0
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


def start(two_nodes: TwoNodes, folder: Path, arguments: str) -> RunDirectory:
    """Start the script with one rank on each of two machines; return its run after five steps."""
    raw = {"model": "script", "dataset": "script", "script": "endless.py", "script_arguments": arguments}
    raw |= {"num_nodes": 2, "nproc_per_node": 1, "device": "cpu"}
    files = {"endless.py": BEFORE + SCRIPT, "watch.py": COPIED}
    run = rundir.create(folder, parse(raw), lambda made: code.write(made.path, files))
    two_nodes.launch(run)
    wait_until("five steps", lambda: len(told(run, "step")) >= 5 or has_ended(run), PATIENCE_S)
    wait_until("its state", lambda: liveness.read_status(run).state == "running", PATIENCE_S)
    return run


def told(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    return events.read(run.events, 0, (kind,))[0] if run.events.exists() else []


def has_ended(run: RunDirectory) -> bool:
    return liveness.read_status(run).state not in events.LIVE_STATES


def story(run: RunDirectory) -> str:
    """Return the logs and the last events of a run."""
    logs = [f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in run.logs.glob("*.log")]
    return "\n".join([*logs, json.dumps(list(events.read_all(run.events))[-5:])])


def has_both_losses(event: dict[str, Any]) -> bool:
    return [rank["rank"] for rank in event["ranks"] if rank.get("loss") is not None] == [0, 1]


def assert_nothing_is_left(run: RunDirectory) -> None:
    wait_until("no process being left", lambda: not processes_of(run), PATIENCE_S)


@pytest.mark.parametrize("two_nodes", ["slurm"], indirect=True)
def test_both_ranks_are_watched_and_stop_at_the_same_step(two_nodes: TwoNodes, tmp_path: Path) -> None:
    run = start(two_nodes, tmp_path, "asks")
    wait_until("the ranks' losses", lambda: any(map(has_both_losses, told(run, "ranks"))), PATIENCE_S)
    two_nodes.engine.stop(run, liveness.read_status(run), save=False)
    wait_until("its end", lambda: has_ended(run), PATIENCE_S)
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
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("two_nodes", ["ssh"], indirect=True)
def test_a_script_that_does_not_ask_gets_sigterm_on_both_machines(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    run = start(two_nodes, tmp_path, "")
    two_nodes.engine.stop(run, liveness.read_status(run), save=False)
    wait_until("its end", lambda: has_ended(run), PATIENCE_S)
    assert liveness.read_status(run).state == "stopped", story(run)
    assert_nothing_is_left(run)
    assert sorted(path.name for path in (run.path / "work").glob("sigterm_*")) == ["sigterm_0", "sigterm_1"]


@pytest.mark.parametrize("two_nodes", ["slurm", "ssh"], indirect=True)
def test_a_script_that_saves_continues_on_two_machines_from_its_checkpoint(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    run = start(two_nodes, tmp_path, "asks saves")
    wait_until("Checkpoint being allowed", lambda: any(e["saves"] for e in told(run, "script")), PATIENCE_S)
    asked = run.append_command("checkpoint")
    wait_until("its answer", lambda: asked in [each["id"] for each in told(run, "command")], PATIENCE_S)
    answer = told(run, "command")[-1]
    assert answer["accepted"] and answer["message"].startswith("Saved step "), story(run)
    two_nodes.engine.stop(run, liveness.read_status(run), save=True)
    wait_until("its end", lambda: has_ended(run), PATIENCE_S)
    assert liveness.read_status(run).state == "stopped", story(run)
    by_button, at_stop = sorted(run.list_checkpoints(), key=lambda item: item.step)
    assert (by_button.reason, at_stop.reason) == ("button", "stop")
    assert all(manifests.find_fault(item) is None for item in (by_button, at_stop))
    assert all((item.path / f"rank_{rank}.pt").is_file() for item in (by_button, at_stop) for rank in (0, 1))
    first = {step["step"]: step["loss"] for step in told(run, "step")}
    run.events.unlink()
    two_nodes.launch(run, by_button.step)
    wait_until("its next steps", lambda: len(told(run, "step")) >= 5 or has_ended(run), PATIENCE_S)
    steps = {step["step"]: step["loss"] for step in told(run, "step")}
    both = steps.keys() & first.keys()
    assert both and min(steps) == by_button.step + 1, story(run)
    assert all(steps[step] == first[step] for step in both), "the same bits"
    two_nodes.engine.stop(run, liveness.read_status(run), save=False)
    wait_until("its end", lambda: has_ended(run), PATIENCE_S)
    assert_nothing_is_left(run)
