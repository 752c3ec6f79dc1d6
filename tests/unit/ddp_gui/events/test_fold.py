"""Chart, row and export agree on a run that was stopped, resumed and rewound while its clock was set back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ddp_gui.events import event_reader
from ddp_gui.events.event_reader import Digest
from ddp_gui.events.fold import Fold
from ddp_gui.events.series import Series
from trainers.contract import events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

REST = {
    "epoch": 0,
    "lr": 0.1,
    "grad_norm": None,
    "samples_per_s": 1.0,
    "step_time_s": 1.0,
    "data_time_s": 0.0,
}


class Story:
    """A run that is restarted several times, each time from an earlier step, and its effective values."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.happened: list[tuple[float, str, dict[str, Any]]] = []
        self.losses: dict[int, float] = {}
        self.evaluations: dict[int, float] = {}
        self.active_s = 0.0
        now, newest = 1e6, 0
        for _ in range(dice.randint(1, 5)):
            now += 500.0  # not part of the run's time
            self._add(now, "state", {"state": "starting", "reason": ""})
            first = dice.randint(1, newest + 1)
            newest = first + dice.randint(0, 30)
            for step in range(first, newest + 1):
                if step == first:
                    self._forget(first)
                if dice.random() < 0.1:
                    now -= 3600.0  # the clock is set back: the duration of this step is unknown
                else:
                    now += 1.0
                    self.active_s += 1.0
                self.losses[step] = dice.random()
                self._add(now, "step", {"step": step, "loss": self.losses[step], **REST})
                if dice.random() < 0.2:
                    self.evaluations[step] = round(dice.random(), 3)
                    metrics = {"accuracy": self.evaluations[step]}
                    self._add(now, "eval", {"step": step, "epoch": 0, "loss": 1.0, "metrics": metrics})
        self.step = newest

    def _add(self, now: float, kind: str, fields: dict[str, Any]) -> None:
        self.happened.append((now, kind, fields))

    def _forget(self, first: int) -> None:
        for kept in (self.losses, self.evaluations):
            for step in [step for step in kept if step >= first]:
                del kept[step]

    @property
    def best(self) -> dict[str, Any] | None:
        if not self.evaluations:
            return None
        step = max(self.evaluations, key=lambda step: (self.evaluations[step], -step))
        return {"name": "accuracy", "value": self.evaluations[step], "step": step}


@pytest.mark.parametrize("seed", range(30))
def test_chart_row_and_export_count_the_same(run: RunDirectory, seed: int) -> None:
    story = Story(seed)
    file = EventFile(run.events)
    file.append(story.happened)
    file.close()
    chart, row = Series(), Digest()
    everything = list(events.read_all(run.events))
    for place in range(0, len(everything), 1 + seed):  # in batches of different sizes
        chart.feed(everything[place : place + 1 + seed])
    row.catch_up(run.events)
    exported = [
        event
        for batch in event_reader.history_of_numbers(run.events, event_reader.survey_numbers(run.events))
        for event in batch
    ]

    steps = chart.steps.x("step").tolist()
    assert dict(zip(steps, chart.steps.column("loss").tolist(), strict=True)) == pytest.approx(story.losses)
    assert {event["step"]: event["loss"] for event in exported if event["kind"] == "step"} == story.losses
    assert [event["step"] for event in chart.evaluations.all] == list(story.evaluations)
    assert [event["step"] for event in exported if event["kind"] == "eval"] == list(story.evaluations)
    assert chart.evaluations.best == row.best == story.best
    assert chart.last_step["step"] == row.step == story.step
    assert chart.active_s() == pytest.approx(story.active_s) and row.took_s == pytest.approx(story.active_s)
    assert exported[-1]["elapsed_s"] == pytest.approx(story.active_s)
    for elapsed_s in (chart.steps.x("time"), [event["elapsed_s"] for event in exported]):
        assert min(np.diff(elapsed_s), default=0.0) >= 0.0 and elapsed_s[0] >= 0.0


def test_an_evaluation_replaces_those_of_its_step_and_later_ones() -> None:
    subject = Fold()
    for step, value in ((5, 0.5), (10, 0.9), (10, 0.4)):
        subject.take_evaluation(step, {"accuracy": value})
    assert subject.best == {"name": "accuracy", "value": 0.5, "step": 5}
    subject.take_evaluation(12, {"loss": 0.1})
    subject.take_evaluation(12, {"accuracy": None})
    assert subject.best == {"name": "accuracy", "value": 0.5, "step": 5}, "neither has a metric to go by"
