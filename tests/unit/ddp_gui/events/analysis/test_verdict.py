"""Tests of the verdict on a run of any length, during the run and at its end; the text does not flicker."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ddp_gui.events.analysis import insights, verdict
from ddp_gui.events.analysis.learning import short
from ddp_gui.events.series import Series
from tests.unit.ddp_gui.events.analysis.test_insights import PLAIN, falling, found, steps
from tests.unit.ddp_gui.events.test_series import evaluation, state, step
from trainers.contract.config import Config

Event = dict[str, Any]
PLAN = {"kind": "plan", "num_train": 6000, "num_validation": 1000, "num_steps": 1000, "global_batch": 64}


def judged(events: Sequence[Event], now: str) -> verdict.Verdict | None:
    """Return the verdict on a run that reports the state `now`."""
    series = Series()
    series.feed([*events, state(now, 10_000, 1000.0 + len(events))])
    return verdict.judge(series, now, insights.find(series, PLAIN, now))


def code(events: Sequence[Event], now: str = "finished") -> str | None:
    said = judged(events, now)
    return None if said is None else said.code


def evaluated(losses: Sequence[float], accuracies: Sequence[float], every: int = 100) -> list[Event]:
    return [
        evaluation(every * (n + 1), 5_000 + n, accuracy=accuracy) | {"loss": loss, "epoch": n}
        for n, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]


@pytest.mark.parametrize(
    ("num_steps", "last", "expected"),
    [(40, 2.2, "too_short"), (40, 1e9, "too_short"), (120, 2.2, "did_not_learn"), (120, 1.9, "learnt")],
)
def test_a_script_learned_only_if_its_loss_fell(num_steps: int, last: float, expected: str) -> None:
    series = Series()
    losses = [2.3 if number < num_steps // 2 else last for number in range(num_steps)]
    series.feed(
        [*(step(n, n, loss=loss) for n, loss in enumerate(losses, 1)), state("finished", 999, 2000.0)]
    )
    script = Config(script="train.py")
    said = verdict.judge(series, "finished", insights.find(series, script, "finished"))
    assert said is not None and said.code == expected


@pytest.mark.parametrize(
    ("loss", "remark", "newest", "title"),
    [
        (lambda n: 2.3 if n == 1 else 1e9, "loss_rises", "1.00e+9", verdict.LOWER_RATE),
        (lambda n: 2.3, "loss_does_not_fall", "2.3", "Did not learn: the loss did not fall."),
        (lambda n: 2.3 + n / 10, "loss_rises", "", verdict.LOWER_RATE),
        (lambda n: math.nan if n > 5 else 2.3, "not_a_number", "NaN", "Did not learn: the loss became NaN."),
        (lambda n: math.nan if n > 5 else 2.3 * n, "not_a_number", "NaN", verdict.LOWER_RATE),
    ],
)
def test_a_short_run_that_diverged(
    loss: Callable[[int], float], remark: str, newest: str, title: str
) -> None:
    events = [step(n, n - 1, loss=loss(n)) for n in range(1, 13)]
    said = judged(events, "finished")
    assert said is not None and said.code == "did_not_learn"
    assert f"and is {newest}" in said.reason and said.title == title
    assert list(found([*events, state("finished", 12, 2000.0)], "finished")) == [remark]


def test_a_classifier_that_only_guesses_did_not_learn() -> None:
    events = [PLAN | {"seq": 0, "time_unix_s": 999.0, "class_names": list("abcdefghij")}]
    events += [step(n, n, loss=2.4 if n == 1 else 2.0 + 0.2 * (n % 2)) for n in range(1, 101)]
    said = judged([*events, *evaluated([2.2], [0.105])], "finished")
    assert said is not None and said.code == "did_not_learn"
    assert "10.5%" in said.reason and "10.0%" in said.reason


def test_a_classifier_whose_loss_falls_to_the_end_only_had_too_few_steps() -> None:
    events = [PLAN | {"seq": 0, "time_unix_s": 999.0, "class_names": list("abc")}]
    events += steps(400, falling)
    guessing = evaluated([1.19, 1.17, 1.14, 1.1], [0.33, 0.33, 0.4, 0.4])
    said = judged([*events, *guessing], "finished")
    assert said is not None and (said.code, said.title) == (
        "still_improving",
        "Still improving: train longer.",
    )
    assert "guessing one of 3 classes gives 33.3%" in said.reason and "falling at the end" in said.reason
    away = evaluated([1e9, 1e8, 1e7, 1e6], [0.33, 0.33, 0.33, 0.33])
    assert code([*events, *away]) == "did_not_learn", "it has diverged and only comes back"


def test_learnt_still_improving_and_memorised_are_told_apart() -> None:
    plan: Event = PLAN | {"seq": 0, "time_unix_s": 999.0}
    trained = [*steps(600, falling)]
    flat = evaluated([0.5, 0.42, 0.401, 0.4, 0.399, 0.4], [0.8, 0.84, 0.85, 0.851, 0.85, 0.85])
    assert code([plan, *trained, *flat]) == "learnt"
    better = evaluated([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [0.5, 0.6, 0.7, 0.75, 0.8, 0.85])
    assert code([plan, *trained, *better]) == "still_improving"
    worse = evaluated([0.9, 0.5, 0.6, 0.7, 0.8, 0.9], [0.7, 0.85, 0.83, 0.8, 0.78, 0.75])
    said = judged([plan, *trained, *worse], "finished")
    assert said is not None and said.code == "memorised"
    assert "from step 200 on" in said.title and "step 200" in said.reason
    assert code([*steps(300, falling), *evaluated([0.04, 0.02, 0.01], [0.99, 0.995, 0.998])]) == "learnt", (
        "what is nearly perfect is not told to train longer"
    )


def test_while_it_runs_a_line_says_whether_it_learns_and_why() -> None:
    assert code([*steps(50, falling)], "running") == "too_early"
    trained = [*steps(400, falling)]
    said = judged(trained, "running")
    assert said is not None and said.code == "learning"
    first, last = (
        statistics.median(event["loss"] for event in part) for part in (trained[:10], trained[-10:])
    )
    fell = f"fell from {short(first)} to {short(last)} (medians of the first and the last 10 steps)."
    assert said.reason == f"The training loss {fell}"
    assert code([*steps(1000, lambda n: 2.3)], "running") == "did_not_learn"


def trivial(metric: str, value: float, error: float, loss: float, **changes: Any) -> Event:
    """Return a `plan` event whose trivial predictor reaches `value` ± `error`."""
    predictor = {"accuracy": "most_frequent_class", "rmse": "mean", "perplexity": "unigram"}[metric]
    answer = {"accuracy": "healthy", "rmse": 152.1, "perplexity": None}[metric]
    about = {"predictor": predictor, "answer": answer, "metric": metric, "value": value, "loss": loss}
    about |= {"standard_error": error, "inputs_differ": True} | changes
    return PLAN | {"seq": 0, "time_unix_s": 999.0, "trivial": about}


def measured(metric: str, values: Sequence[float], losses: Sequence[float]) -> list[Event]:
    found = zip(values, losses, strict=True)
    return [
        event | {"metrics": {metric: value}}
        for event, (value, _) in zip(evaluated(losses, values), found, strict=True)
    ]


def flat(level: float, first: float | None = None) -> Callable[[int], float]:
    return lambda n: level if n > 1 or first is None else first


def to(end: float, start: float = 2.3) -> Callable[[int], float]:
    return lambda n: end + (start - end) * math.exp(-n / 60)


RARE = trivial("accuracy", 0.95, 0.0154, 0.1985)
THREE = trivial("accuracy", 0.3333, 0.0861, 1.0986)
HALF = trivial("accuracy", 0.5, 0.0354, 0.6931)
NUMBER = trivial("rmse", 77.5, 4.3, 1.02)
LETTERS = trivial("perplexity", 22.0, 0.062, 3.0911)
ONE_CLASS = trivial("accuracy", 1.0, 0.0, 0.0)
CONSTANT = trivial("accuracy", 0.5, 0.03, 0.69, inputs_differ=False)


def jump(number: int) -> float:
    return 1.1 if number == 1 else 30 / number + 1.1


def outlier(number: int) -> float:
    return 1e6 if number in (150, 390) else to(0.1, 1.1)(number)


def late_nan(number: int) -> float:
    return math.nan if number > 200 else to(0.1, 1.1)(number)


@pytest.mark.parametrize(
    ("plan", "loss", "values", "losses", "expected"),
    [
        (RARE, to(0.2, 0.7), [0.95] * 4, [0.21, 0.2, 0.2, 0.199], "did_not_learn data"),
        (NUMBER, to(0.2, 1.0), [78, 79, 80, 80.6], [1.02, 1.05, 1.08, 1.1], "did_not_learn data"),
        (NUMBER, to(0.5, 1.0), [60, 56, 55.5, 55.4], [0.6, 0.53, 0.52, 0.52], "learnt None"),
        (LETTERS, to(3.1, 4.2), [22.1, 22.0, 22.0, 21.99], [3.1, 3.09, 3.09, 3.09], "did_not_learn data"),
        (THREE, jump, [0.33] * 4, [3, 1.4, 1.2, 1.19], "did_not_learn rate_too_high"),
        (THREE, flat(2.3), [0.33] * 4, [2.3] * 4, "did_not_learn too_few_steps"),
        (THREE, to(0.1, 1.1), [0.3, 0.8, 0.4, 0.33], [1.1, 0.6, 0.9, 1.3], "memorised overfitting"),
        (ONE_CLASS, to(0, 0.7), [1.0] * 4, [0.1, 0.01, 0, 0], "did_not_learn one_answer"),
        (CONSTANT, flat(0.7), [0.5] * 4, [0.7] * 4, "did_not_learn constant_input"),
        (THREE, outlier, [0.7, 0.9, 0.96, 0.96], [0.6, 0.3, 0.2, 0.199], "learnt None"),
        (THREE, late_nan, [0.7, 0.9, 0.33, 0.33], [0.6, 0.3, 1.1, 1.1], "did_not_learn not_a_number"),
    ],
    ids=[
        "95 to 5", "R2 below 0", "number", "letters", "jump", "rate too low", "lost again", "one class",
        "constant input", "outlier", "NaN",
    ],
)  # fmt: skip
def test_the_verdict_compares_with_the_trivial_predictor_and_names_what_was_observed(
    plan: Event, loss: Callable[[int], float], values: list[float], losses: list[float], expected: str
) -> None:
    metric = plan["trivial"]["metric"]
    trained = [step(n, n, loss=loss(n)) for n in range(1, 401)]
    said = judged([plan, *trained, *measured(metric, values, losses)], "finished")
    assert said is not None
    assert f"{said.code} {said.cause}" == expected, said
    assert ("lower rate" in said.title) == (said.cause == "rate_too_high"), "and only there"
    if said.cause != "not_a_number" and "NaN" not in said.reason:
        assert "gives" in said.reason, "the trivial predictor with its number"


def test_few_steps_are_named_as_such() -> None:
    trained = [step(n, n, loss=1.2 - n / 1000) for n in range(1, 21)]
    said = judged([THREE, *trained, *measured("accuracy", [0.36], [1.19])], "finished")
    assert said is not None and (said.cause, said.title) == ("too_few_steps", "Did not learn: too few steps.")
    assert "The run had 20 steps." in said.reason
    assert (
        "Validation accuracy is 36.0%; always predicting the most frequent class (healthy) gives 33.3% "
        "(standard error 8.6%)." in said.reason
    )


def test_a_loss_that_jumped_is_no_overfitting() -> None:
    values, losses = [25.0, 2.2, 0.79, 1.7, 4.8, 1.4, 1.2, 1.2], [25.0, 2.2, 0.79, 1.7, 4.8, 1.4, 1.2, 1.2]
    for peak, cause in ((1100.0, "rate_too_high"), (1.2, "overfitting")):
        trained = [step(n, n, loss=peak * 0.98**n if n > 5 else 1.0) for n in range(1, 801)]
        plan = trivial("rmse", 5.0, 0.1, 1.0)
        said = judged([plan, *trained, *measured("rmse", values, losses)], "finished")
        assert said is not None and said.cause == cause, said


def test_between_one_and_two_standard_errors_it_learned_little() -> None:
    trained = [step(n, n, loss=to(0.6, 0.7)(n)) for n in range(1, 401)]
    titles = []
    for accuracy in (0.53, 0.55, 0.58):
        said = judged([HALF, *trained, *measured("accuracy", [accuracy] * 2, [0.68, 0.68])], "finished")
        assert said is not None
        titles.append(said.title.partition(":")[0])
    assert titles == ["Did not learn", "Learned little", "Learned."]


def test_while_it_runs_the_loss_alone_is_not_learning_where_the_trivial_predictor_is_known() -> None:
    trained = [step(n, n, loss=to(0.05, 0.7)(n)) for n in range(1, 401)]
    assert code([HALF, *trained, *measured("accuracy", [0.5], [0.9])], "running") == "too_early"
    assert code([HALF, *trained, *measured("accuracy", [0.8], [0.4])], "running") == "learning"
    flat_loss = [*steps(1000, flat(0.1))]
    began_well = [HALF, *flat_loss, *measured("accuracy", [0.97], [0.1])]
    assert code(began_well, "running") == "learning", "a pretrained model begins with a low loss"
    assert "loss_does_not_fall" not in found(began_well)


def test_few_steps_that_learn_already_are_told_to_go_on() -> None:
    many_classes = trivial("accuracy", 0.117, 0.017, 2.296)
    trained = [step(n, n, loss=2.33 - n / 200) for n in range(1, 26)]
    said = judged([many_classes, *trained, *measured("accuracy", [0.61], [2.18])], "finished")
    assert said is not None and (said.code, said.cause) == ("still_improving", "too_few_steps")
