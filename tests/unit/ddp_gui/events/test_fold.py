"""An evaluation replaces earlier ones of its step and of later steps, as after a resume."""

from __future__ import annotations

from ddp_gui.events.fold import Fold


def test_an_evaluation_replaces_those_of_its_step_and_later_ones() -> None:
    subject = Fold()
    for step, value in ((5, 0.5), (10, 0.9), (10, 0.4)):
        subject.take_evaluation(step, {"accuracy": value})
    assert subject.best == {"name": "accuracy", "value": 0.5, "step": 5}
    subject.take_evaluation(12, {"loss": 0.1})
    subject.take_evaluation(12, {"accuracy": None})
    assert subject.best == {"name": "accuracy", "value": 0.5, "step": 5}, "neither has a metric to go by"
