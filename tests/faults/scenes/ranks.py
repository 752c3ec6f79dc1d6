"""Misbehaving ranks: a model in a copy of the repository misbehaves at a random step."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from ddp_gui.events.analysis import insights
from ddp_gui.events.series import Series
from tests.faults.registry import HANG_LIMIT_S, LIMIT_S, add
from tests.faults.trial import BUSY_START_S, PATIENCE_S, Trial
from tests.harness import REPOSITORY, LiveRun, wait_until

MODEL = '''
"""A model that misbehaves, on the rank and from the step that the environment names."""

import ctypes
import os
import resource
import sys
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from trainers.models.mlp import build as build_mlp
from trainers.registry import register_model

RANK, STEP = os.environ.get("FAULT_RANK"), int(os.environ.get("FAULT_STEP", "0"))


class Misbehaves(nn.Module):
    def __init__(self, spec, options):
        super().__init__()
        self.network = build_mlp(spec, replace(options, size="small"))
        self.num_steps = 0

    def forward(self, x):
        self.num_steps += self.training
        if self.training and self.num_steps == STEP and os.environ["RANK"] == RANK:
            with open(os.environ["FAULT_MARK"], "w") as mark:
                mark.write(str(time.monotonic()))
            BEHAVIOUR
        return self.network(x)


@register_model("misbehaves", label="Misbehaves", description="For a test.", tasks=("image_classification",))
def build(spec, options):
    return Misbehaves(spec, options)
'''

RAISES = 'raise RuntimeError("the weights are upside down")'
EXITS = "os._exit(0)"
SEGFAULTS = "ctypes.string_at(0)"
# A limit on the address space simulates a lack of memory.
FILLS_MEMORY = (
    "used = int(open('/proc/self/statm').read().split()[0]) * 4096; "
    "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28)); "
    "self.hoard = [torch.ones(2**22) for _ in range(10_000)]"
)
# SIGKILL simulates the kernel's out-of-memory killer.
IS_KILLED = "os.kill(os.getpid(), 9)"
# One collective more than on the other ranks, so the ranks wait for each other in different collectives.
DEADLOCKS = "dist.all_reduce(torch.zeros(3))"
SLEEPS = "time.sleep(10**6)"
GIVES_NAN = "self.network.apply(lambda part: [p.data.fill_(float('nan')) for p in part.parameters()])"
FLOODS = "[print('x' * 1000, flush=False) for _ in range(1_000_000)]"


def repository_with(behaviour: str, folder: Path) -> Path:
    """Copy the training half, add a model with this behaviour, and return the root of the copy."""
    root = folder / "repository"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "trainers", root / "trainers", ignore=ignore)
    (root / "assets").mkdir()
    (root / "assets" / "data").symlink_to(REPOSITORY / "assets" / "data")
    text = MODEL.replace("BEHAVIOUR", behaviour)
    (root / "trainers" / "models" / "misbehaves.py").write_text(text, encoding="utf-8")
    return root


def start_misbehaving(trial: Trial, behaviour: str, rank: int, **values: object) -> LiveRun:
    """Start a run in which one rank shows this behaviour within the first 400 steps."""
    trial.launcher.repository = repository_with(behaviour, trial.folder)
    environment = {
        "FAULT_RANK": str(rank),
        "FAULT_STEP": str(trial.dice.randint(1, 400)),
        "FAULT_MARK": str(trial.folder / "mark"),
    }
    live = trial.start(environment=environment, model="misbehaves", **values)
    trial.fault_step = int(environment["FAULT_STEP"])
    return live


def _wait_for_it(trial: Trial, live: LiveRun) -> None:
    """Wait until the rank reports that the fault occurs. CLOCK_MONOTONIC is the same for all processes."""
    mark = Path(live.environment["FAULT_MARK"])

    def says_so() -> bool:
        assert live.supervisor.poll() is None or mark.exists(), f"it ended before: {live.story()}"
        return mark.exists() and mark.stat().st_size > 0

    wait_until("the step of the fault", says_so, BUSY_START_S)
    trial.struck_at = float(mark.read_text())


def _fails(trial: Trial, behaviour: str, says: str) -> None:
    rank = trial.dice.randint(0, 1)
    live = start_misbehaving(trial, behaviour, rank)
    _wait_for_it(trial, live)
    trial.ends(live.run, "failed", says=says.replace("RANK", str(rank)))


def _hangs(trial: Trial, behaviour: str) -> None:
    rank = trial.dice.randint(0, 1)
    live = start_misbehaving(trial, behaviour, rank, hang_timeout_s=10)
    _wait_for_it(trial, live)
    trial.ends(live.run, "failed", says=f"[Rr]ank {rank}" if behaviour is SLEEPS else "[Rr]ank")


def _gives_nan(trial: Trial) -> None:
    """Training continues with NaN as its loss, an insight reports it, and Stop still works."""
    live = start_misbehaving(trial, GIVES_NAN, trial.dice.randint(0, 1))
    live.wait_for("step", lambda event: event["loss"] is None, timeout_s=PATIENCE_S)
    trial.strike()
    trial.goes_on(live)
    series = Series()
    series.feed(live.events())
    said = {insight.code for insight in insights.find(series, live.run.read_config(), "running")}
    trial.expect("not_a_number" in said, f"the page says only {said}")
    trial.strike()
    trial.stop(live)


add("a rank raises", partial(_fails, behaviour=RAISES, says="Rank RANK failed: RuntimeError: the weights"))
add("a rank exits 0 early", partial(_fails, behaviour=EXITS, says="Rank RANK ended before training was done"))
add("a rank segfaults", partial(_fails, behaviour=SEGFAULTS, says=r"Rank RANK crashed \(SIGSEGV\)"))
add("a rank runs out of memory (RLIMIT_AS)", partial(_fails, behaviour=FILLS_MEMORY, says="Rank RANK.*batch"))
add(
    "a rank is killed as the out-of-memory killer does",
    partial(_fails, behaviour=IS_KILLED, says="Rank RANK was killed.*batch"),
)
add("a rank deadlocks in a collective", partial(_hangs, behaviour=DEADLOCKS), times=8, limit_s=HANG_LIMIT_S)
add("a rank sleeps for ever", partial(_hangs, behaviour=SLEEPS), times=8, limit_s=HANG_LIMIT_S)
add("a rank produces NaN", _gives_nan, limit_s=LIMIT_S)
