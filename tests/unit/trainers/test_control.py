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
from trainers.checkpoint.save_and_restore import Progress
from trainers.contract import checkpoint_files, config, rundir
from trainers.contract.checkpoint_files import CheckpointError, PeersGoneError
from trainers.contract.commands import COMMAND_NAMES, Command
from trainers.contract.config import Config
from trainers.control import Stopped
from trainers.job import SaveAnswers, hint_of
from trainers.optimisation.optimizers import LearningRate
from trainers.report.observer import Observer
from trainers.report.reporter import NullReporter
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import Pulse

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
        observer=Observer(StepClock(nn.Linear(1, 1), torch.device("cpu"), measures_wait=False), Pulse()),
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


def test_checkpoint_during_a_pause_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the save were counted twice, the step after the pause would start in the future."""
    job = paused_job(monkeypatch, None, Command(name="checkpoint"), None, Command(name="resume"))
    started = time.perf_counter()
    control.stay_paused(job, "Paused.")
    lasted_s = time.perf_counter() - started
    assert job.saves == ["button"]
    assert 1.0 + SAVE_TAKES_S <= job.observer._stood_still_s <= 1.0 + lasted_s


def test_stop_during_a_pause_saves_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    job = paused_job(monkeypatch, None, Command(name="stop"))
    with pytest.raises(Stopped):
        control.stay_paused(job, "Paused.")
    assert job.saves == ["stop"]


def test_a_stop_that_says_why_is_remembered_for_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    job = paused_job(monkeypatch, Command(name="stop", why="Time is up."))
    said = []
    job.reporter.state = lambda state, reason: said.append((state, reason))
    with pytest.raises(Stopped, match=r"^Time is up\.$"):
        control.stay_paused(job, "Paused.")
    assert ("stopping", "Time is up.") in said


def test_stop_without_saving_during_a_pause_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = paused_job(monkeypatch, Command(name="stop", save=False))
    with pytest.raises(Stopped):
        control.stay_paused(job, "Paused.")
    assert job.saves == []


def test_learning_rate_can_be_set_during_a_pause_without_ending_it(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [Command(name="set_lr", learning_rate=0.5), Command(name="pause"), Command(name="resume")]
    job = paused_job(monkeypatch, *commands)
    control.stay_paused(job, "Paused.")
    assert job.progress.learning_rate == 0.5


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


def test_at_the_end_of_a_run_there_is_nothing_left_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    job, usual = (made := paused_job(monkeypatch)), made.observer
    answers = []
    job.reporter.answer = lambda _, *, accepted, message, **__: answers.append((accepted, message))
    control.obey(job, Command(name="record", num_steps=3))
    assert answers == [(False, "The run is at its end: there is no step left to record.")]
    assert job.observer is usual


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of a rank's sleeps, which return immediately."""
    found: list[float] = []
    monkeypatch.setattr(control.time, "sleep", found.append)
    return found


def test_a_rank_that_is_slowed_down_sleeps_while_it_trains_until_it_is_let_go(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    job = paused_job(monkeypatch)
    model = job.strategy.model
    for delay_ms in (500, 50):  # the second delay replaces the first
        control.obey(job, Command(name="slow_rank", rank=1, delay_ms=delay_ms))
    model(torch.zeros(1))
    assert slept == [0.05]
    model.eval()(torch.zeros(1))
    assert slept == [0.05], "nobody sleeps while the model is evaluated"
    control.obey(job, Command(name="slow_rank", rank=1, delay_ms=0))
    model.train()(torch.zeros(1))
    assert slept == [0.05]
    assert not model._forward_pre_hooks, "nothing of it is left in a step"


def test_only_the_rank_that_was_named_sleeps(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    job = paused_job(monkeypatch)
    control.obey(job, Command(name="slow_rank", rank=0, delay_ms=50))
    job.strategy.model(torch.zeros(1))
    assert slept == [] and not job.strategy.model._forward_pre_hooks


def test_the_sleep_of_a_step_is_divided_among_its_micro_batches(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    job = paused_job(monkeypatch)
    job.config = Config(gradient_accumulation_steps=10)
    control.obey(job, Command(name="slow_rank", rank=1, delay_ms=500))
    job.strategy.model(torch.zeros(1))
    assert slept == [0.05]


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
    with pytest.raises(CheckpointError, match="stay free" if free == 999 else "its share") as refused:
        checkpoint_files.require_room(run, 1, 600, "", keep_last=None, best_step=None, most_bytes=1)
    assert "Free some space" in hint_of(outcome_of(monkeypatch, refused.value))


def test_the_loss_of_other_ranks_needs_no_space() -> None:
    assert "space" not in hint_of(PeersGoneError("the connection to the other ranks was lost"))
