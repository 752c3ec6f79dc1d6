"""When a step is interrupted, its random state and counters are restored."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainers import control
from trainers.checkpoint.snapshot import StepStart
from trainers.control import Stopped
from trainers.job import Job
from trainers.report.observer import NullObserver
from trainers.report.reporter import Command

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())


def test_what_a_forward_pass_changes_is_put_back_for_a_while() -> None:
    subject = network()
    start = StepStart(subject, CPU)
    assert not start.is_noted
    start.note()
    statistics = [buffer.clone() for buffer in subject.buffers()]
    begins_with = (subject(torch.ones(3, 4)), random.random())
    moved = [buffer.clone() for buffer in subject.buffers()]
    assert not torch.equal(statistics[0], moved[0])
    with start.put_back():
        for buffer, before in zip(subject.buffers(), statistics, strict=True):
            assert torch.equal(buffer, before)
        assert torch.equal(subject(torch.ones(3, 4)), begins_with[0]) and random.random() == begins_with[1]
    for buffer, after in zip(subject.buffers(), moved, strict=True):
        assert torch.equal(buffer, after)
    goes_on_with = torch.rand(3)
    start.note()
    start.forget()
    assert not start.is_noted
    torch.manual_seed(5)
    again = network()
    again(torch.ones(3, 4))
    assert torch.equal(torch.rand(3), goes_on_with), "as if nothing had been put back"


@pytest.mark.parametrize(
    ("num_accumulated", "reports_every_step", "step", "is_noted"),
    [(4, True, 3, True), (1, True, 3, False), (4, False, 3, False), (4, True, 0, False)],
    ids=["long", "one batch", "short", "first"],
)
def test_only_a_long_step_of_several_batches_can_be_left(
    num_accumulated: int, reports_every_step: bool, step: int, is_noted: bool
) -> None:
    job = SimpleNamespace(
        config=SimpleNamespace(gradient_accumulation_steps=num_accumulated),
        meter=SimpleNamespace(reports_every_step=reports_every_step),
        progress=SimpleNamespace(step=step),
        step_start=StepStart(network(), CPU),
        observer=NullObserver(),
        is_step_reported=lambda: True,
    )
    Job.begin_step(job)  # type: ignore[arg-type]
    assert job.step_start.is_noted is is_noted


class Steps(NullObserver):
    """Counts how often an interrupted step continues."""

    num_going_on = 0

    def go_on_within_step(self) -> None:
        self.num_going_on += 1


def job_that_hears(command: Command, monkeypatch: pytest.MonkeyPatch, *, stops: bool) -> SimpleNamespace:
    """Return a job that receives a command in mid-step. If `stops` is False, the stop is rejected."""
    heard = iter([command, None])
    job = SimpleNamespace(
        meter=SimpleNamespace(should_leave_step=lambda: True, report=lambda: next(heard)),
        step_start=StepStart(network(), CPU),
        observer=Steps(),
        drawn_at_save=[],
    )

    def obey(_job: SimpleNamespace, said: Command) -> None:
        assert said is command
        job.drawn_at_save.append(float(torch.rand(1)))
        if stops:
            raise Stopped("")

    monkeypatch.setattr(control, "obey", obey)
    return job


@pytest.mark.parametrize("stops", [True, False])
def test_stop_within_a_step_saves_the_step_before_it_and_a_refused_one_goes_on(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_that_hears(Command(name="stop"), monkeypatch, stops=stops)
    job.step_start.note()
    at_its_beginning = torch.get_rng_state()
    torch.rand(3)
    in_the_middle = torch.get_rng_state()
    with pytest.raises(Stopped) if stops else contextlib.nullcontext():
        control.obey_within_step(job)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), in_the_middle)
    torch.set_rng_state(at_its_beginning)
    assert job.drawn_at_save == [float(torch.rand(1))]
    assert job.observer.num_going_on == (1 if stops else 2)


def test_step_that_is_over_soon_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_that_hears(Command(name="stop"), monkeypatch, stops=True)
    control.obey_within_step(job)  # type: ignore[arg-type]
    assert job.drawn_at_save == [] and job.observer.num_going_on == 0
