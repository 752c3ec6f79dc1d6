"""Made-up runs with one problem each get the matching advice; healthy runs get none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ddp_gui.events.analysis import insights
from ddp_gui.events.series import Series
from tests.unit.ddp_gui.events.test_series import evaluation, step
from trainers.contract import config

Event = dict[str, Any]
PLAIN = config.parse({})


def steps(count: int, loss: Callable[[int], float], **fields: Any) -> Iterator[Event]:
    """Yield a made-up run of `count` steps of 50 ms with some noise on the loss."""
    noise = random.Random(0)
    for number in range(1, count + 1):
        value = loss(number) + noise.gauss(0, 0.02)
        event = step(number, number - 1, loss=value, time_unix_s=1000.0 + number * 0.05)
        yield event | {"step_time_s": 0.05, "data_time_s": 0.001, "lr": 0.002} | fields


def found(events: Iterable[Event], state: str = "running", **changes: Any) -> dict[str, insights.Insight]:
    series = Series()
    series.feed(events)
    changed = config.parse(PLAIN.to_json() | changes)
    return {insight.code: insight for insight in insights.find(series, changed, state)}


def falling(number: int) -> float:
    return 2.3 * math.exp(-number / 150) + 0.3


def ranks(seq: int, *own_and_wait: tuple[float, float | None]) -> Event:
    entries = [
        {"rank": rank, "step": 1, "step_time_s": own + (wait or 0.0), "data_time_s": 0.0, "wait_time_s": wait}
        for rank, (own, wait) in enumerate(own_and_wait)
    ]
    return {"seq": seq, "time_unix_s": 2000.0 + seq, "kind": "ranks", "ranks": entries}


@pytest.mark.parametrize("state", ["running", "paused", "finished", "stopped"])
def test_a_healthy_run_has_none(state: str) -> None:
    events = [*steps(1000, falling)]
    events += [evaluation(n, 1000 + n, accuracy=0.8) | {"loss": falling(n)} for n in range(100, 1001, 100)]
    events += [ranks(3000 + n, (0.04, 0.01), (0.041, 0.009)) for n in range(10)]
    assert found(events, state) == {}
    wobbling = lambda number: 0.002 + 0.001 * math.sin(number) if number > 300 else falling(number) - 0.29  # noqa: E731
    assert found(steps(1000, wobbling), state) == {}, "converged near zero"


def test_nan_names_the_step_it_began_at() -> None:
    events = [*steps(811, falling), *steps(900, lambda number: math.nan)][:811]
    events += [step(n, n, loss=math.nan) | {"loss": None} for n in range(812, 830)]
    said = found(events, "failed")["not_a_number"]
    assert "step 812" in said.message and "step 812" in said.evidence
    assert said.action.values == {"learning_rate": 0.0002}


def test_a_rate_far_too_high_is_told_from_the_first_step() -> None:
    thrown = lambda number: 2.33 if number == 1 else 1e6 * 0.9**number + 2.31  # noqa: E731
    assert list(found(steps(1000, thrown))) == ["loss_does_not_fall"]
    stuck = lambda number: 2.33 if number == 1 else 41.0  # noqa: E731
    assert list(found(steps(1000, stuck))) == ["loss_rises"]


def test_memorising_is_validation_up_and_training_down() -> None:
    training = lambda number: 2.0 * math.exp(-number / 400)  # noqa: E731
    validation = {100: 1.5, 200: 1.2, 300: 1.1, 400: 1.2, 500: 1.35, 600: 1.5}
    events = [*steps(600, training)]
    evaluations = [
        evaluation(n, 600 + n, accuracy=0.5) | {"loss": loss, "time_unix_s": 1100.0}
        for n, loss in validation.items()
    ]
    said = found(events + evaluations)["memorises"]
    assert "step 300" in said.message
    assert said.action.values == {"early_stopping_patience": 3}
    only_two_worse = [e for e in evaluations if e["step"] <= 500]
    assert "memorises" not in found(events + only_two_worse)


def test_the_slow_rank_is_named_when_it_is_slow_several_times_in_a_row() -> None:
    slow = [ranks(n, (0.05, 0.04), (0.09, 0.0)) for n in range(5)]
    said = found(slow)["slow_rank"]
    assert (said.rank, said.action) == (1, None)
    assert said.message.startswith("Rank 1 is 1.8 times slower")
    assert found(slow[:4]) == {}
    assert found([*slow[:4], ranks(4, (0.09, 0.0), (0.05, 0.04))]) == {}
    unmeasured = [ranks(n, (0.05, None), (0.09, 0.0)) for n in range(5)]
    assert found(unmeasured) == {}, "the others' waiting would pass for work"
    assert found(slow, "finished") == {}, "nothing can be done any more"


def slow_down(seq: int, rank: int, delay_ms: int, *, accepted: bool = True) -> Event:
    """Return a made-up answer to the command `slow_rank` at this step."""
    event = {"seq": seq, "time_unix_s": 1000.0 + seq, "kind": "command", "id": str(seq), "name": "slow_rank"}
    arguments = {"rank": rank, "delay_ms": delay_ms}
    return event | {"step": seq, "accepted": accepted, "message": "", "arguments": arguments}


def test_a_rank_that_was_slowed_down_on_purpose_is_said_as_such_and_stays_said() -> None:
    events = [*steps(100, falling), slow_down(101, 1, 200)]
    slow = [ranks(200 + n, (0.05, 0.2), (0.25, 0.0)) for n in range(5)]
    said = found(events + slow)
    assert "slow_rank" not in said, "nobody has to find out why"
    assert said["slowed_on_purpose"].rank == 1
    assert said["slowed_on_purpose"].message.startswith(
        "A user lets rank 1 sleep 200 ms in each step since step 102: do not compare"
    )
    let_go = [*events, *slow, slow_down(300, 1, 0)]
    message = found(let_go, "finished")["slowed_on_purpose"].message
    assert message.startswith("A user let rank 1 sleep 200 ms in each step from step 102 to 300: do not")
    again = [*let_go, slow_down(310, 0, 50)]
    assert "rank 0 sleep 50 ms in each step since step 311 (the last of 2" in (
        found(again)["slowed_on_purpose"].message
    )


def test_waiting_for_data_says_how_much_and_offers_workers() -> None:
    events = [*steps(200, falling, data_time_s=0.0215)]
    said = found(events)["waits_for_data"]
    assert "43% of each step" in said.message
    assert said.action.values == {"num_workers": 4}
    more = found(events, num_workers=4)["waits_for_data"].action
    assert more.values == {"num_workers": 8}
    assert found(steps(200, falling, step_time_s=0.002, data_time_s=0.001)) == {}, "a tiny model's step"


def devices(seq: int, *, busy: float, used: int) -> Event:
    device = {
        "rank": 0, "node": 0, "kind": "cuda", "index": 0, "name": "GPU", "utilization_percent": busy,
        "memory_used_bytes": used, "memory_total_bytes": 100, "temperature_celsius": None,
        "power_watts": None,
    }  # fmt: skip
    return {"seq": seq, "time_unix_s": 2000.0 + seq, "kind": "devices", "devices": [device]}


def test_an_idle_gpu_and_a_full_one() -> None:
    idle = found([devices(n, busy=20.0, used=10) for n in range(20)])["gpu_is_idle"]
    assert idle.action.values == {"batch_size": 256}
    assert found([devices(n, busy=90.0, used=10) for n in range(20)]) == {}
    full = found([devices(n, busy=90.0, used=97) for n in range(20)])["memory_is_full"]
    assert "97% full" in full.message


def loads(others_and_idle: Iterable[tuple[float | None, float | None]], kind: str = "cpu") -> list[Event]:
    device = {"rank": 0, "node": 0, "kind": kind, "index": 0, "utilization_percent": 90.0}
    return [
        {
            "seq": 10_000 + number,
            "time_unix_s": 1000.0 + number,
            "kind": "devices",
            "devices": [device],
            "others_cpu_percent": others,
            "idle_cpu_percent": idle,
        }
        for number, (others, idle) in enumerate(others_and_idle)
    ]


def spans(others_and_idle: Iterable[tuple[float | None, float | None]]) -> list[insights.Span]:
    series = Series()
    series.feed(loads(others_and_idle))
    return insights.contended_spans(series.load)


def test_the_time_in_which_others_took_the_processor_is_found() -> None:
    quiet, busy = (4.0, 2.0), (48.0, 0.5)
    (span,) = spans([quiet] * 20 + [busy] * 30 + [quiet] * 20)
    assert (span.from_s, span.to_s) == pytest.approx((19.0, 49.0), abs=1.0)
    assert span.others_percent == pytest.approx(48.0, abs=1.0)
    assert spans([(60.0, 30.0)] * 40) == [], "where cores are free others take nothing away"


@pytest.mark.parametrize("state", ["running", "finished"])
def test_it_is_said_with_how_long_and_how_much(state: str) -> None:
    events = [*steps(1000, falling), *loads([(50.0, 0.0)] * 30 + [(2.0, 1.0)] * 30)]
    events.sort(key=lambda event: float(event["time_unix_s"]))
    said = found(events, state)["others_use_the_processor"]
    assert "50% of the processor" in said.message and "of 59 s" in said.message
    on_gpus = [*steps(1000, falling), *loads([(50.0, 0.0)] * 60, kind="cuda")]
    assert "others_use_the_processor" not in found(on_gpus, state)
    hardly = [*steps(1000, falling), *loads([(50.0, 0.0)] * 6 + [(2.0, 1.0)] * 60)]
    assert "others_use_the_processor" not in found(hardly, state)
