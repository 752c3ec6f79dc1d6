"""CPU contention by other programs is reported, marked and stored with the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ddp_gui.events.analysis import insights
from ddp_gui.events.series import Series
from tests.unit.ddp_gui.events.analysis.test_insights import falling, found, steps

Event = dict[str, Any]


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


def test_where_cores_are_free_others_take_nothing_away() -> None:
    assert spans([(60.0, 30.0)] * 40) == []


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
