"""Tests of the meter: each step is reported once, and all ranks receive a command at the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.fakes import LoneWorld, world_of
from trainers.report.reporter import Command, NullReporter, StepBatch
from trainers.report.step_meter import StepMeter


class Notebook(NullReporter):
    """Keeps all reported steps and returns preset commands."""

    def __init__(self, commands: Sequence[Command] = ()) -> None:
        self.written: list[Mapping[str, Any]] = []
        self.commands = list(commands)

    def steps(self, batch: StepBatch) -> None:
        self.written += batch.events()

    def poll_command(self) -> Command | None:
        return self.commands.pop(0) if self.commands else None


class TwinWorld(LoneWorld):
    """One of two ranks; the tensors of the other rank are a recording, added in order."""

    def __init__(self, rank: int, others: list[Tensor], sent: list[Tensor]) -> None:
        super().__init__(rank=rank, local_rank=rank, world_size=2, node=0, device=torch.device("cpu"))
        object.__setattr__(self, "others", others)
        object.__setattr__(self, "sent", sent)

    def sum(self, values: Tensor) -> Tensor:
        self.sent.append(values.clone())  # type: ignore[attr-defined]
        if self.others:  # type: ignore[attr-defined]
            values += self.others.pop(0)  # type: ignore[attr-defined]
        return values


def run_steps(subject: StepMeter, count: int, *, step_time_s: float, first: int = 1) -> list[Command | None]:
    """Report steps with a loss of a tenth of their number."""
    return [
        subject.add_loss(torch.tensor(step / 10))
        or subject.step_done(
            step=step, epoch=0, lr=0.1, num_global=4, step_time_s=step_time_s, data_time_s=0.0
        )
        for step in range(first, first + count)
    ]


@pytest.mark.parametrize(
    ("step_time_s", "steps_per_report"), [(0.001, 100), (0.02, 5), (5.0, 1), (1e-6, 512)]
)
def test_reports_come_about_ten_times_a_second_however_fast_the_loop(
    step_time_s: float, steps_per_report: int
) -> None:
    notebook = Notebook()
    subject = StepMeter(world_of(1), notebook)
    reported = []
    for step in range(1, 2000):
        run_steps(subject, 1, step_time_s=step_time_s, first=step)
        if len(notebook.written) == step:
            reported.append(step)
    assert reported[0] == 1, "the first step is shown at once"
    gaps = {later - earlier for earlier, later in pairwise(reported[1:])}
    assert gaps == {steps_per_report}


def test_loss_is_the_mean_over_ranks_and_a_command_is_heard_by_all_at_one_step() -> None:
    """Rank 0 runs first; its messages are replayed to rank 1, whose own reporter receives no command."""
    asked = Command(name="set_lr", learning_rate=0.000_123_456_789, id="abc")
    sent: list[Tensor] = []
    main = StepMeter(TwinWorld(0, [], sent), Notebook([asked]))
    (heard_by_main,) = run_steps(main, 1, step_time_s=0.02)
    assert heard_by_main == asked, "rank 0 keeps the id"

    notebook = Notebook()
    other = StepMeter(TwinWorld(1, [sent[0]], []), notebook)
    (heard,) = run_steps(other, 1, step_time_s=99.0)
    assert heard == Command(name="set_lr", learning_rate=0.000_123_456_789)
    assert notebook.written[0]["loss"] == pytest.approx(0.1), "twice a tenth, over two ranks"
    assert [other.is_report_due() for _ in range(1)] == [main.is_report_due()], "the interval is rank 0's"


def step(subject: StepMeter, number: int) -> Command | None:
    """End a step with a loss of a tenth of its number, as the training loop does."""
    subject.settle()
    subject.add_loss(torch.tensor(number / 10))
    about = {"epoch": 0, "lr": 0.1, "num_global": 4, "step_time_s": 5.0, "data_time_s": 0.0}
    return subject.step_done(step=number, **about)  # type: ignore[arg-type]


def steps_of(notebook: Notebook) -> list[int]:
    return [event["step"] for event in notebook.written]


def test_a_report_is_read_when_the_next_step_is_handed_out() -> None:
    notebook = Notebook()
    subject = StepMeter(world_of(1), notebook, reads_late=True)
    step(subject, 1)
    assert notebook.written == [] and subject.has_unread_report
    step(subject, 2)
    assert steps_of(notebook) == [1]
    subject.finish_report()
    assert steps_of(notebook) == [1, 2] and not subject.has_unread_report


def test_a_checkpoint_is_never_ahead_of_its_curve_and_swallows_no_command() -> None:
    notebook = Notebook([Command(name="pause")])
    subject = StepMeter(world_of(1), notebook, reads_late=True)
    step(subject, 1)
    subject.flush()
    assert steps_of(notebook) == [1]
    heard = step(subject, 2)
    assert heard is not None and heard.name == "pause"
