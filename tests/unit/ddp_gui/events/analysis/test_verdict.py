"""A run is judged at its end, however short it was, and while it goes on; what is said does not flicker."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ddp_gui.events import run_view
from ddp_gui.events.analysis import insights, learning, verdict
from ddp_gui.events.analysis.wording import short
from ddp_gui.events.series import Series
from tests.unit.ddp_gui.events.analysis.test_insights import PLAIN, falling, found, steps
from tests.unit.ddp_gui.events.test_series import evaluation, state, step

Event = dict[str, Any]
PLAN = {"kind": "plan", "num_train": 6000, "num_validation": 1000, "num_steps": 1000, "global_batch": 64}


def judged(events: Sequence[Event], now: str) -> verdict.Verdict | None:
    """Return the verdict on a run that says of itself what state it is in."""
    series = Series()
    series.feed([*events, state(now, 10_000, 1000.0 + len(events))])
    return verdict.judge(series, now, insights.find(series, PLAIN, now))  # type: ignore[arg-type]


def code(events: Sequence[Event], now: str = "finished") -> str | None:
    said = judged(events, now)
    return None if said is None else said.code


def evaluated(losses: Sequence[float], accuracies: Sequence[float], every: int = 100) -> list[Event]:
    return [
        evaluation(every * (n + 1), 5_000 + n, accuracy=accuracy) | {"loss": loss, "epoch": n}
        for n, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]


@pytest.mark.parametrize(
    ("loss", "remark", "newest"),
    [
        (lambda n: 2.3 if n == 1 else 1e9, "loss_rises", "1.00e+9"),
        (lambda n: 2.3, "loss_does_not_fall", "2.3"),
        (lambda n: 2.3 + n / 10, "loss_rises", ""),
        (lambda n: math.nan if n > 5 else 2.3, "not_a_number", "NaN"),
    ],
)
@pytest.mark.parametrize("num_steps", [12, 40])
def test_a_short_run_that_diverged_is_told_when_it_ends(
    loss: Callable[[int], float], remark: str, newest: str, num_steps: int
) -> None:
    events = [step(n, n - 1, loss=loss(n)) for n in range(1, num_steps + 1)]
    said = judged(events, "finished")
    assert said is not None and said.code == "did_not_learn"
    assert f"and is {newest}" in said.reason and "lower rate" in said.title
    assert list(found([*events, state("finished", num_steps, 2000.0)], "finished")) == [remark]


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
    assert "guessing one of 3 classes gives 33.3%" in said.reason and "falling to the end" in said.reason
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
    assert "from epoch 3 on" in said.title and "step 200" in said.reason


def test_what_is_nearly_perfect_is_not_told_to_train_longer() -> None:
    better = evaluated([0.04, 0.02, 0.01], [0.99, 0.995, 0.998])
    assert code([*steps(300, falling), *better]) == "learnt"


@pytest.mark.parametrize(
    ("num_steps", "expected"), [(0, None), (1, "too_short"), (9, "too_short"), (20, "still_improving")]
)
def test_too_few_steps_are_not_judged(num_steps: int, expected: str | None) -> None:
    events = [step(n, n - 1, loss=2.3 * 0.9**n) for n in range(1, num_steps + 1)]
    assert code(events) == expected


@pytest.mark.parametrize("now", ["failed", "lost"])
def test_a_run_that_failed_has_no_verdict(now: str) -> None:
    assert code([*steps(300, falling)], now) is None


def test_while_it_runs_a_line_says_whether_it_learns_and_why() -> None:
    assert code([*steps(50, falling)], "running") == "too_early"
    trained = [*steps(400, falling)]
    said = judged(trained, "running")
    assert said is not None and said.code == "learning"
    first, last = (
        statistics.fmean(event["loss"] for event in part) for part in (trained[:10], trained[-10:])
    )
    fell = f"fell from {short(first)} to {short(last)} (means of the first and the last 10 steps)."
    assert said.reason == f"The training loss {fell}"
    assert code([*steps(1000, lambda n: 2.3)], "running") == "did_not_learn"


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda n: 2.3 if n == 1 else 0.5, (0.68, 0.5, 10)),
        (lambda n: 0.4 if n <= 10 else 0.9 - n / 1000, (0.76, 0.52, 40)),
        (lambda n: 2.3 if n == 1 else 0.1 + n / 200, (2.3, 2.1, 1)),
        (lambda _: 1.0, (1.0, 1.0, 10)),
    ],
)
def test_as_many_steps_are_compared_at_both_ends(
    loss: Callable[[int], float], expected: tuple[float, float, int]
) -> None:
    """Those that show what is said; where none do, ten."""
    series = Series()
    series.feed([step(n, n - 1, loss=loss(n)) for n in range(1, 401)])
    assert learning.loss_at_ends(series, -1) == pytest.approx(expected, abs=0.01)


def test_memorising_is_not_told_of_a_loss_near_zero_whose_accuracy_stays() -> None:
    """What toggled nine times in 22 s: 0.0148 against 0.0169 at 99.4%."""
    noise = random.Random(1)
    losses = [0.2, 0.05, 0.02, *(0.0148 + 0.0021 * noise.random() for _ in range(40))]
    accuracies = [0.9, 0.98, 0.992, *(0.994 + 0.001 * noise.random() for _ in range(40))]
    plan: Event = PLAN | {"seq": 0, "time_unix_s": 999.0}
    events = [plan, *steps(4_400, lambda n: 2.0 * math.exp(-n / 400)), *evaluated(losses, accuracies)]
    for num in range(3, 44):
        assert "memorises" not in found(events[: 4_401 + num]), num


def test_memorising_once_told_stays_told_until_validation_is_good_again() -> None:
    training = [*steps(1400, lambda n: 2.0 * math.exp(-n / 400))]
    wobbling = [1.2, 1.0, 1.2, 1.3, 1.5, 1.25, 1.35, 1.2, 1.4, 1.12]
    told = [
        "memorises" in found([*training, *evaluated(wobbling[:num], [0.5] * num)])
        for num in range(1, len(wobbling) + 1)
    ]
    assert told == [False] * 4 + [True] * 6
    good_again = [*wobbling, 1.01]
    assert "memorises" not in found([*training, *evaluated(good_again, [0.5] * len(good_again))])


def test_after_a_lowered_rate_a_run_that_diverged_is_started_again() -> None:
    def stuck(number: int) -> float:
        return 2.33 if number == 1 else 41.0

    lowered = {"kind": "command", "name": "set_lr", "id": "1", "step": 500, "accepted": True, "message": ""}
    events = [*steps(1000, stuck), {"seq": 1000, "time_unix_s": 1050.0} | lowered]
    action = found(events)["loss_rises"].action
    assert action is not None
    assert (action.kind, action.values) == ("again", {"learning_rate": 0.0002})


def test_a_remark_is_shown_long_enough_to_be_read() -> None:
    view = object.__new__(run_view.RunView)
    view._insights, view._found_at = [], {}
    remark = insights.Insight(code="slow_rank", message="Rank 1 is slow.", evidence="the ranks events")
    assert view._kept_for_a_while([remark], 100.0) == [remark]
    view._insights = [remark]
    assert view._kept_for_a_while([], 100.0 + run_view.SHOWN_AT_LEAST_S - 0.1) == [remark]
    assert view._kept_for_a_while([], 100.0 + run_view.SHOWN_AT_LEAST_S + 0.1) == []
    newer = insights.Insight(code="slow_rank", message="Rank 1 is slower.", evidence="the ranks events")
    assert view._kept_for_a_while([newer], 105.0) == [newer], "and its newest words"
