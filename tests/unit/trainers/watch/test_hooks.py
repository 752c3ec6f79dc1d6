"""Tests of the hooks into torch: one program in a separate process runs all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY
from trainers.contract import events, rundir
from trainers.contract.config import Config

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


@pytest.mark.slow
def test_failed_steps_and_unusual_inputs_do_not_disturb_script_or_steps(tmp_path: Path) -> None:
    run = rundir.RunDirectory(tmp_path / "run")
    rundir.make(run, Config(script="train.py", nproc_per_node=1))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", UNUSUAL, str(run.path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"RANK": "0", "WORLD_SIZE": "2"},
    )
    assert done.returncode == 0, done.stderr
    steps = events.read(run.events, 0, ("step",))[0]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert {step["loss"] for step in steps} == {16.0}, "without that of the step that failed"
    assert done.stderr.count("Traceback") == 1 and "Internal error of Rankscope" in done.stderr
