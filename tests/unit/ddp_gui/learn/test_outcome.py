"""Answers are compared with measurements; lessons that do not fit the machine are replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ddp_gui.events.series import Series
from ddp_gui.learn import lesson_file, measures, outcome
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import ChoiceQuestion, Lesson
from ddp_gui.learn.measures import Measurement, RunNumbers
from ddp_gui.learn.outcome import fit
from ddp_gui.plan import recipe
from ddp_gui.server import LESSONS
from tests.unit.ddp_gui.learn.lessons import LESSON, changed
from trainers.contract import config as config_module
from trainers.contract.config import ConfigError, Problem

SPEED_UP = ChoiceQuestion(
    question=["How much faster?"],
    choices=(["twice"], ["one and a half"], ["hardly"]),
    right=2,
    measured=("speed_up(1, 0) >= 1.75", "1.35 <= speed_up(1, 0) < 1.75", "speed_up(1, 0) < 1.35"),
)


def run(
    name: str,
    step_times: Sequence[float],
    *,
    num_ranks: int = 1,
    others_percent: float = 0.0,
    batch: int = 32,
    loss: Callable[[int], Any] = lambda step: 1.0 / step,
    state: str = "finished",
) -> RunNumbers:
    """Return a run with these step times; other programs use `others_percent` of the CPU throughout."""
    series = Series()
    plan = {"kind": "plan", "seq": 0, "time_unix_s": 1000.0, "num_train": 1 << 20, "global_batch": batch}
    events: list[dict[str, Any]] = [plan]
    now = 1000.0
    for number, step_time_s in enumerate(step_times, start=1):
        now += step_time_s
        events.append(
            {
                "kind": "step", "seq": len(events), "time_unix_s": now, "step": number, "epoch": 0,
                "loss": loss(number), "lr": 0.1, "grad_norm": None, "samples_per_s": batch / step_time_s,
                "step_time_s": step_time_s, "data_time_s": 0.0,
            }
        )  # fmt: skip
        if number % 5 == 0:
            load = {"others_cpu_percent": others_percent, "idle_cpu_percent": 0.0, "devices": []}
            events.append({"kind": "devices", "seq": len(events), "time_unix_s": now, **load})
    series.feed(events)
    return RunNumbers.of(name, state, num_ranks, series)


def two(step_times: Sequence[float]) -> RunNumbers:
    return run("two", step_times, num_ranks=2)


def pair(one: RunNumbers, two: RunNumbers) -> dict[measures.RunName, RunNumbers]:
    return {0: one, 1: two}


@pytest.mark.parametrize(
    ("step_time_s", "verdict", "happened"),
    [(0.009, "explained", 2), (0.0065, "otherwise", 1), (0.0055, "otherwise", 0)],
)
def test_a_reveal_is_what_this_run_measured(step_time_s: float, verdict: str, happened: int) -> None:
    found = outcome.of_choice(SPEED_UP, pair(run("one", [0.01] * 100), two([step_time_s] * 100)))
    assert (found.verdict, found.happened, found.reasons) == (verdict, happened, ())
    assert found.numbers[0]["value"] == pytest.approx(0.01 / step_time_s)


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        # A speed-up of 29 with two ranks, as observed on a busy machine.
        (
            run("one", [0.29] * 100),
            two([0.01] * 100),
            "“two” was 29 times as fast as “one” with 2 times as many",
        ),
        (
            run("one", [0.01] * 100, others_percent=60.0),
            two([0.009] * 100),
            "Other programs used the processor for",
        ),
        (
            run("one", [0.01] * 100),
            two([0.006] * 60 + [0.02] * 60),
            "took 6 ms in its first half and 20 ms in its",
        ),
        (run("one", [0.01] * 12), two([0.009] * 100), "Only 12 complete steps of “one”"),
        (run("one", [0.01] * 3), two([0.009] * 100), "was not measured"),
    ],
)
def test_a_measurement_without_weight_says_why(one: RunNumbers, two: RunNumbers, reason: str) -> None:
    found = outcome.of_choice(SPEED_UP, pair(one, two))
    assert found.verdict in ("doubtful", "unmeasured") and found.happened is None
    assert any(reason in each for each in found.reasons), found.reasons


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed_up(1, 0)", "compares nothing"),
        ("1 < 2", "contains no quantity"),
        ("luck(0) < 1", "'luck' is not a quantity; the quantities are: loss"),
        ("loss(2) < 1", "run 2 does not exist; allowed: 0 to 1"),
        ("loss(True) < 1", "loss has a run"),
        ("speed_up(1) < 1", "speed_up has a run, a run to compare with"),
        ("wait(1) < 1", "wait has a run, a rank"),
        ("loss('seed 2') < 1", "'seed 2' is not a choice of the attempt; allowed: seed 1"),
        ("loss(0) < 1; loss(1) < 1", "is not a condition"),
        ("loss(0) in loss(1)", "is not a comparison"),
        ("loss(0) ** 99999 < 1", "is not a number or a quantity"),
        ("__import__('os').system('true') == 0", "is not a quantity"),
        ("(" * 199 + "loss(0)" + ")" * 199 + "<1", "more than 400 characters"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        measures.check_condition(text, 2, ["seed 1"])


def test_a_condition_computes_what_it_says() -> None:
    runs = pair(run("one", [0.01] * 40), run("two", [0.05] * 40, batch=64))
    for text, holds in (
        ("0.03 <= step_time(1) - step_time(0) < 0.06", True),
        ("not step_time(1) < 4 * step_time(0)", True),
        ("samples(1) / samples(0) == 2 and num_steps(0) == 40", True),
        ("loss(0) == -1 or global_batch(1) == 32", False),
        ("loss(0) / failed(0) > 1 or loss(0) > 0", None),
    ):
        measures.check_condition(text, 2)
        if holds is None:
            with pytest.raises(measures.UnmeasuredError, match="divisor is 0"):
                measures.condition_holds(text, runs)
        else:
            assert measures.condition_holds(text, runs) is holds, text
    assert measures.measurements("wait(1, 0) < wait(1, 1)") == [
        Measurement(quantity="wait", runs=(1,), rank=rank) for rank in (0, 1)
    ]


def test_every_prediction_of_our_lessons_is_compared_with_its_runs() -> None:
    lessons, broken = Library([LESSONS]).read()
    assert not broken
    # Their attempts show results that no number of a run contains: sample assignment and recorded steps.
    not_in_numbers = {"what-a-rank-is", "who-sees-what"}
    for lesson in lessons:
        assert isinstance(lesson.prediction, ChoiceQuestion) and lesson.prediction.measured, lesson.name
        tried = [question for question in lesson.questions if question.attempt is not None]
        assert all(question.measured for question in tried) or lesson.name in not_in_numbers, lesson.name


def machine(*, num_gpus: int, num_cores: int) -> Callable[[dict[str, Any]], object]:
    """Return a function that checks a configuration like a machine with this many GPUs and cores."""

    def plan(config: dict[str, Any]) -> object:
        most = num_cores if config.get("device") == "cpu" or num_gpus == 0 else num_gpus
        if config["nproc_per_node"] > most:
            wrong = Problem(
                field="nproc_per_node", value=config["nproc_per_node"], allowed="fewer", suggestion=most
            )
            raise ConfigError([wrong])
        if config["dataset"] == "names":
            raise ConfigError([Problem(field="dataset", value="names", allowed="pip install it")])
        return config

    return plan


def as_written(lesson: Lesson, run: int) -> dict[str, Any]:
    """Return a run's configuration, completed with the field defaults for which lessons were written."""
    defaults = config_module.default_values()
    return {name: defaults[name] for name in recipe.FIELDS} | dict(lesson.runs[run].config)


def test_with_one_gpu_two_ranks_run_on_the_cpu() -> None:
    lesson = lesson_file.parse("a", LESSON)
    found = fit(lesson, machine(num_gpus=1, num_cores=4))
    assert found.obstacles == ["two ranks: nproc_per_node is 2; allowed: fewer."]
    assert found.way == "On this machine it runs on CPU ranks instead."
    assert found.of(lesson.runs[1].config) == {**as_written(lesson, 1), "device": "cpu"}


def test_on_a_small_machine_a_lesson_for_eight_ranks_runs_on_four() -> None:
    lesson = lesson_file.parse("a", changed("nproc_per_node = 2", "nproc_per_node = 8"))
    found = fit(lesson, machine(num_gpus=0, num_cores=4))
    assert "at most 4 ranks" in found.way
    assert [found.of(run.config)["nproc_per_node"] for run in lesson.runs] == [1, 4]


def test_where_a_data_set_is_missing_nothing_is_promised() -> None:
    lesson = lesson_file.parse("a", changed('dataset = "digits"', 'dataset = "names"'))
    found = fit(lesson, machine(num_gpus=0, num_cores=4))
    assert found.way == "" and "pip install it" in found.obstacles[0]
