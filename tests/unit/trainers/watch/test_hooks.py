"""Tests of the hooks into torch: one program in a separate process runs all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import REPOSITORY
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.watch import spool

PROGRAM = """
import json, sys, warnings
from pathlib import Path
from trainers.watch import hooks
from trainers.watch.settings import Settings

recorder = hooks.install(Settings(run_dir=Path(sys.argv[1]), code_dir=Path(sys.argv[1])))
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
loader = DataLoader(TensorDataset(torch.ones(12, 4) * torch.arange(12.0)[:, None]), batch_size=4)
losses = []
for epoch in range(2):
    for (batch,) in loader:
        loss = network(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(network.parameters(), 1e9)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append([loss.item(), norm.item()])
        loss.mul_(0)  # the script may change its loss afterwards
    network.eval()
    with torch.no_grad():
        for (batch,) in loader:
            network(batch)
    network.train()
recorder.end(1)
loss = torch.compile(network, backend="eager")(batch).mean()
assert float(loss) == loss.item()
print(json.dumps(losses))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the script's own losses, and the steps and events of its run."""
    run = rundir.RunDirectory(tmp_path_factory.mktemp("hooks") / "run")
    rundir.make(run, Config(script="train.py", nproc_per_node=1))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(run.path)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in run.events.read_text().splitlines()]
    return {"losses": json.loads(done.stdout), "events": events, "path": run.path}


@pytest.mark.slow
def test_each_hook_sees_what_it_is_for(seen: dict[str, Any]) -> None:
    steps = [event for event in seen["events"] if event["kind"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [[step["loss"], step["grad_norm"]] for step in steps] == seen["losses"]
    assert [step["epoch"] for step in steps] == [0, 0, 0, 1, 1, 1]
    assert {step["lr"] for step in steps} == {0.5}
    assert all(step["samples_per_s"] > 0 and step["data_time_s"] > 0 for step in steps)


@pytest.mark.slow
def test_the_model_and_the_length_of_a_pass_are_known(seen: dict[str, Any]) -> None:
    (about, *_) = [event for event in seen["events"] if event["kind"] == "script"]
    assert about["model"] == "Sequential" and about["num_parameters"] == 25 and about["optimizer"] == "SGD"
    assert about["steps_per_epoch"] == 3 and about["global_batch"] == 4 and about["num_train"] == 12


@pytest.mark.slow
def test_how_it_ended_is_left_for_the_supervisor(seen: dict[str, Any]) -> None:
    assert spool.read_ends(Path(seen["path"]), 1) == [spool.DONE]
