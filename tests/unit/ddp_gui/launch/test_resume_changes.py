"""Tests of more epochs: changes to a run's configuration, and the description of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp_gui.launch import launcher
from tests.unit.checkpoints import leave_checkpoint
from trainers.contract import rundir
from trainers.contract.config import Config, ConfigError
from trainers.contract.rundir import Checkpoint


def checkpoint(tmp_path: Path, *, epoch: int, samples_in_epoch: int) -> Checkpoint:
    run = rundir.create(tmp_path, Config(), lambda _run: None)
    leave_checkpoint(run, step=5, epoch=epoch, samples_in_epoch=samples_in_epoch)
    return run.list_checkpoints()[0]


def test_early_stopping_that_ended_a_run_does_not_end_it_again(tmp_path: Path) -> None:
    at = checkpoint(tmp_path, epoch=3, samples_in_epoch=0)
    changes = launcher.more_epochs(at, 1, stopped_early=True)
    assert changes == {"num_epochs": 4, "max_steps": None, "early_stopping_patience": None}


@pytest.mark.parametrize("nonsense", [0, -1, 1.5, True, "10", "", 100_001, [], 10**30])
def test_nonsense_is_refused_by_name(tmp_path: Path, nonsense: Any) -> None:
    at = checkpoint(tmp_path, epoch=3, samples_in_epoch=0)
    with pytest.raises(ConfigError, match=r"more_epochs is .*; allowed: a whole number from 1 to 100,000"):
        launcher.more_epochs(at, nonsense, stopped_early=False)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "equals that of a run"),
        ({"lr_schedule": "step"}, "equals that of a run"),
        ({"warmup_steps": 100}, "equals that of a run"),
        ({"warmup_steps": 101}, "differs slightly"),
        ({"warmup_ratio": 0.1}, "differs slightly"),
        ({"lr_schedule": "cosine"}, "The cosine schedule will span all epochs: the learning rate jumps up"),
        ({"lr_schedule": "one_cycle"}, "The one-cycle schedule"),
    ],
)
def test_it_is_said_whether_the_result_is_the_same(values: dict[str, Any], words: str) -> None:
    assert words in launcher.more_epochs_note(Config(**values), num_steps=100)
