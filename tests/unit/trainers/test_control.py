"""Each command of the contract is answered."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainers import control
from trainers.checkpoint.snapshot import Progress
from trainers.contract.commands import COMMAND_NAMES, Command
from trainers.contract.config import Config
from trainers.control import Stopped
from trainers.job import SaveAnswers
from trainers.optimisation.optimizers import LearningRate
from trainers.report.observer import Observer
from trainers.report.reporter import NullReporter
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import LiveProgress


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_of_the_contract_is_answered(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    heard = iter([Command(name="resume")])  # ends a pause
    reporter, answered = NullReporter(), []
    reporter.answer = lambda command, **_: answered.append(command.name)  # type: ignore[method-assign]
    network = nn.Linear(1, 1)
    clock = StepClock(network, torch.device("cpu"), measures_wait=False)
    job = SimpleNamespace(
        progress=Progress(step=7),
        reporter=reporter,
        meter=SimpleNamespace(report=lambda: next(heard)),
        config=Config(),
        checkpointer=SimpleNamespace(is_saved=lambda _step: True),
        answers=SaveAnswers(NullReporter()),
        observer=Observer(clock, LiveProgress()),
        has_ended=lambda: True,
        world=SimpleNamespace(rank=1, world_size=2),
        strategy=SimpleNamespace(model=network),
        slowed=None,
        rate=LearningRate(Config(), num_replicas=1, num_train=100),
    )
    for save in ("save", "save_and_wait"):
        monkeypatch.setattr(control, save, lambda *_: True)
    with contextlib.suppress(Stopped):
        control.execute(job, Command(name=name, learning_rate=0.5))
    assert name in answered
