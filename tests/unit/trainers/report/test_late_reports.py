"""Tests of reports that are read one step late, as on a GPU; here with CPU tensors, which never block."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.fakes import world_of
from tests.unit.trainers.report.test_step_meter import Notebook
from trainers.report.reporter import Command
from trainers.report.step_meter import StepMeter

CPU = torch.device("cpu")


def late(notebook: Notebook, world: Any = None) -> StepMeter:
    return StepMeter(world or world_of(1), notebook, reads_late=True)


def step(subject: StepMeter, number: int, *, step_time_s: float = 5.0) -> Command | None:
    """End a step with a loss of a tenth of its number, as the training loop does."""
    subject.settle()
    subject.add_loss(torch.tensor(number / 10))
    return subject.step_done(
        step=number,
        epoch=0,
        lr=0.1,
        num_global=4,
        step_time_s=step_time_s,
        data_time_s=0.0,
    )


def steps_of(notebook: Notebook) -> list[int]:
    return [event["step"] for event in notebook.written]


def test_a_report_is_read_when_the_next_step_is_handed_out() -> None:
    notebook = Notebook()
    subject = late(notebook)
    step(subject, 1)
    assert notebook.written == [] and subject.has_unread_report
    step(subject, 2)
    assert steps_of(notebook) == [1]
    subject.finish_report()
    assert steps_of(notebook) == [1, 2] and not subject.has_unread_report


def test_a_checkpoint_is_never_ahead_of_its_curve_and_swallows_no_command() -> None:
    notebook = Notebook([Command(name="pause")])
    subject = late(notebook)
    step(subject, 1)
    subject.flush()
    assert steps_of(notebook) == [1]
    heard = step(subject, 2)
    assert heard is not None and heard.name == "pause"
