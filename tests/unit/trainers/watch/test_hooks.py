"""Tests of the hooks into torch: one program in a separate process runs all of them."""

from __future__ import annotations

import json
import os
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
from trainers.watch import guard, hooks
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

# Rank 0 of two, without a data loader: a step that raises, and inputs that are no batches of plain tensors.
UNUSUAL = """
import gc, sys, weakref
from pathlib import Path
from trainers.watch import guard, hooks
from trainers.watch.settings import Settings

recorder = hooks.install(Settings(run_dir=Path(sys.argv[1]), code_dir=Path(sys.argv[1])))
import torch
from torch import nn


class Model(nn.Linear):
    def forward(self, x, more=None):
        return super().forward(x)


class TooLarge(torch.optim.SGD):
    fails = True

    def step(self, closure=None):
        if self.fails:
            raise torch.OutOfMemoryError("no memory for the state")
        return super().step(closure)


class Lazy(dict):
    def values(self):
        raise NotImplementedError


def attempt(size):
    optimizer = TooLarge(model.parameters(), lr=0.0)
    attempts.append(weakref.ref(optimizer))
    for _ in range(3):
        loss = model(torch.full((size, 4), 2.0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


model, attempts = Model(4, 1), []
nn.init.constant_(model.weight, 0.5)
nn.init.zeros_(model.bias)
try:
    attempt(64)
except torch.OutOfMemoryError:
    pass
gc.collect()
assert attempts[0]() is None, "its memory is released"
TooLarge.fails = False
attempt(32)
x = torch.ones(3, 4)
model(x[:0])
model(x, torch.sparse_coo_tensor(size=(3, 4)))
torch.vmap(model)(x)
torch.func.grad(lambda x: model(x).sum())(x)
torch.compile(lambda x: model(x) + 1, backend="eager", fullgraph=True)(x)
assert not guard.failed, guard.failed
model(x, Lazy())
assert guard.failed == {"_count_inputs"}
recorder.end(1)
"""


def run_program(program: str, folder: Path, **environment: str) -> tuple[rundir.RunDirectory, str, str]:
    """Run a watched program; return its run, and what it has written to stdout and stderr."""
    run = rundir.RunDirectory(folder / "run")
    rundir.make(run, Config(script="train.py", nproc_per_node=1))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(run.path)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run, done.stdout, done.stderr


def events_of(run: rundir.RunDirectory) -> list[dict[str, Any]]:
    """Return the events of a run."""
    return [json.loads(line) for line in run.events.read_text().splitlines()]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the script's own losses, and the steps and events of its run."""
    run, output, _ = run_program(PROGRAM, tmp_path_factory.mktemp("hooks"))
    return {"losses": json.loads(output), "events": events_of(run), "path": run.path}


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


@pytest.mark.slow
def test_failed_steps_and_unusual_inputs_do_not_disturb_script_or_steps(tmp_path: Path) -> None:
    run, _, errors = run_program(UNUSUAL, tmp_path, RANK="0", WORLD_SIZE="2")
    steps = [event for event in events_of(run) if event["kind"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert {step["loss"] for step in steps} == {16.0}, "without that of the step that failed"
    assert errors.count("Traceback") == 1 and "An error of Rankscope" in errors
