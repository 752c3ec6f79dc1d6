"""Tests of reports that are read one step late, as on a GPU; here with CPU tensors, which never block."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.fakes import world_of
from tests.unit.trainers.report.test_meter import Notebook, TwinWorld
from trainers import loop
from trainers.checkpoint.snapshot import Progress
from trainers.contract.config import Config
from trainers.data.loading import Batch
from trainers.job import Job
from trainers.parallel.precision import Precision
from trainers.report import metrics
from trainers.report.meter import StepMeter
from trainers.report.observer import NullFingerprints, NullObserver
from trainers.report.reporter import Command

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


def test_a_command_takes_effect_on_all_ranks_one_step_later() -> None:
    """Rank 0 runs first; its messages are replayed to rank 1, whose own reporter receives no command."""
    asked = Command(name="set_lr", learning_rate=0.25, id="abc")
    sent: list[Tensor] = []
    notebook = Notebook([asked])
    main = late(notebook, TwinWorld(0, [], sent))
    heard_by_main = [step(main, number) for number in (1, 2, 3)]
    assert heard_by_main == [None, asked, None]
    other = late(Notebook(), TwinWorld(1, list(sent), []))
    heard = [step(other, number, step_time_s=99.0) for number in (1, 2, 3)]
    assert heard == [None, Command(name="set_lr", learning_rate=0.25), None]


def test_a_checkpoint_is_never_ahead_of_its_curve_and_swallows_no_command() -> None:
    notebook = Notebook([Command(name="pause")])
    subject = late(notebook)
    step(subject, 1)
    subject.flush()
    assert steps_of(notebook) == [1]
    heard = step(subject, 2)
    assert heard is not None and heard.name == "pause"


class Diary:
    """Records the order of events.

    It replaces the strategy, the clock and all other objects that the loop uses.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[str] = []
        self.parameter = nn.Parameter(torch.ones(1))
        waiting = metrics.DeviceLosses._wait_for

        def noted(subject: Any, arrived: Tensor) -> list[float]:
            self.entries.append("wait")
            return waiting(subject, arrived)

        monkeypatch.setattr(metrics.DeviceLosses, "_wait_for", noted)

    def loss(self, *_: Any) -> Tensor:
        self.entries.append("hand out")
        return self.parameter.sum()

    def job(self, num_steps: int) -> Any:
        """Return a job that reports every step."""
        batch = Batch(inputs=torch.ones(1), targets=torch.ones(1), weight=1.0, num_global=1, is_last=True)
        progress = Progress()
        observer = NullObserver()
        observer.step_time_s = 5.0
        world = world_of(1)
        job = SimpleNamespace(
            config=Config(),
            world=world,
            progress=progress,
            strategy=SimpleNamespace(
                model=nn.Identity(),
                is_collective=False,
                gradient_sync=lambda *, enabled: contextlib.nullcontext(),
                loss_function=lambda _objective: self.loss,
                gradient_norm=lambda: torch.ones(()),
            ),
            meter=late(Notebook(), world),
            observer=observer,
            fingerprints=NullFingerprints(),
            loader=SimpleNamespace(set_epoch=ignore, starting_at=lambda _: [batch] * num_steps),
            objective=ignore,
            precision=Precision("fp32", CPU),
            optimizer=torch.optim.SGD([self.parameter]),
            rate=SimpleNamespace(apply=lambda *_: 0.1),
            begin_step=ignore,
            has_ended=lambda: progress.step >= num_steps,
        )
        job.num_train, job.global_batch = 10**6, 1
        job.is_step_reported = partial(Job.is_step_reported, job)
        job.end_step = partial(Job.end_step, job)
        return job


def ignore(*_: Any, **__: Any) -> None:
    """Return None for any arguments."""


def test_the_loop_hands_out_a_step_before_it_waits_for_the_report_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diary = Diary(monkeypatch)
    monkeypatch.setattr(loop, "finish", ignore)
    monkeypatch.setattr(loop, "sample_now_and_then", ignore)
    loop.train(diary.job(4))
    assert diary.entries == ["hand out", *["hand out", "wait"] * 3], "the last report is read at the end"
