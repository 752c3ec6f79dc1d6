"""Tests of commands to a run whose effect a real run shows only by chance, such as clocks during a pause."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainers import control
from trainers.checkpoint.checkpoint_writer import CheckpointWriter
from trainers.checkpoint.snapshot import Progress
from trainers.contract import checkpoint_files, config, rundir
from trainers.contract.checkpoint_files import CheckpointError
from trainers.contract.commands import COMMAND_NAMES, Command
from trainers.contract.config import Config
from trainers.control import Stopped
from trainers.job import SaveAnswers, hint_of
from trainers.optimisation.optimizers import LearningRate
from trainers.report.observer import Observer
from trainers.report.reporter import NullReporter
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import LiveProgress

SAVE_TAKES_S = 0.05


def paused_job(monkeypatch: pytest.MonkeyPatch, *commands: Command | None) -> SimpleNamespace:
    """Return a paused job that receives these commands; its saves take some time."""
    heard = iter(commands)
    job = SimpleNamespace(
        progress=Progress(step=7),
        reporter=NullReporter(),
        meter=SimpleNamespace(report=lambda: next(heard)),
        config=Config(),
        checkpointer=SimpleNamespace(is_saved=lambda _step: True),
        answers=SaveAnswers(NullReporter()),
        observer=Observer(
            StepClock(nn.Linear(1, 1), torch.device("cpu"), measures_wait=False), LiveProgress()
        ),
        saves=[],
        has_ended=lambda: True,
        world=SimpleNamespace(rank=1, world_size=2),
        strategy=SimpleNamespace(model=nn.Linear(1, 1)),
        slowed=None,
        rate=LearningRate(Config(), num_replicas=1, num_train=100),
    )
    job.observer._stood_still_s = 1.0

    def save(job: SimpleNamespace, reason: str) -> bool:
        with job.observer.standing_still():
            time.sleep(SAVE_TAKES_S)
        job.saves.append(reason)
        return True

    monkeypatch.setattr(control, "save", save)
    monkeypatch.setattr(control, "save_and_wait", save)
    monkeypatch.setattr(control, "PAUSE_POLL_S", 0.001)
    return job


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_of_the_contract_is_answered(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    job = paused_job(monkeypatch, Command(name="resume"))
    answered = []
    job.reporter.answer = lambda command, **_: answered.append(command.name)
    with contextlib.suppress(Stopped):
        control.obey(job, Command(name=name, learning_rate=0.5))
    assert name in answered


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        ({}, None),
        ({"warmup_steps": 16}, "0.25"),
        ({"warmup_steps": 4}, None),
        ({"lr_schedule": "linear"}, "0.464646"),
    ],
)
def test_the_answer_names_the_rate_that_warm_up_and_schedule_make_of_it(
    monkeypatch: pytest.MonkeyPatch, schedule: dict[str, Any], first: str | None
) -> None:
    job, answers = paused_job(monkeypatch), []
    job.config = config.parse({"max_steps": 100, **schedule})
    job.rate = LearningRate(job.config, num_replicas=1, num_train=10_000)
    job.reporter.answer = lambda _, *, message, **__: answers.append(message)
    control.obey(job, Command(name="set_lr", learning_rate=0.5))
    assert (f": {first} in that step" in answers[0]) == (first is not None), answers
    assert "0.5 from step 8 on" in answers[0]


def outcome_of(monkeypatch: pytest.MonkeyPatch, error: Exception) -> CheckpointError:
    """Return the error of a save that fails with this exception."""
    writer = CheckpointWriter.__new__(CheckpointWriter)
    writer._world = SimpleNamespace(is_main=False)  # type: ignore[assignment]
    monkeypatch.setattr(writer, "_gather", lambda mine: [json.loads(json.dumps(mine))])

    def fail() -> None:
        raise error

    with pytest.raises(CheckpointError, match="rank 0 could not write the checkpoint: ") as failed:
        writer._together(fail, Path("nowhere"))
    return failed.value


def wrapped(error: OSError) -> RuntimeError:
    """Return an error that hides an OSError, as torch's errors do."""
    outer = RuntimeError("unexpected pos 64 vs 0")
    outer.__context__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "needs_space", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/runs/a"), True, "the disk of /runs is full: "),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True, "the disk quota is used up: "),
        (wrapped(OSError(errno.ENOSPC, "No space left on device")), True, "the disk is full: "),
        (PermissionError(errno.EACCES, "Permission denied", "/runs/a"), False, "has no permission"),
        (RuntimeError("no free space in the full quota"), False, "no free space"),
    ],
)
def test_only_a_full_disk_needs_space(
    monkeypatch: pytest.MonkeyPatch, error: Exception, needs_space: bool, words: str
) -> None:
    outcome = outcome_of(monkeypatch, error)
    assert words in str(outcome)
    assert ("Free some space" in hint_of(outcome)) is needs_space


@pytest.mark.parametrize("free", [999, 10**9])
def test_a_checkpoint_that_is_refused_for_its_size_needs_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int
) -> None:
    """The checkpoint exceeds the reserved space of the disk, or the share of its run."""
    monkeypatch.setattr(rundir, "disk_room", lambda _: (free, 500))
    run = rundir.create(tmp_path, Config())
    with pytest.raises(CheckpointError, match="are reserved" if free == 999 else "its share") as refused:
        checkpoint_files.require_room(run, 1, 600, "", keep_last=None, best_step=None, most_bytes=1)
    assert "Free some space" in hint_of(outcome_of(monkeypatch, refused.value))
