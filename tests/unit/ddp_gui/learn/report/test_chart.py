"""Tests of a report's charts: their points, and numbers as text."""

from __future__ import annotations

import html
import json
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.events.series import Series
from ddp_gui.learn.report import charts, markup
from ddp_gui.learn.report.charts import ShownRun
from ddp_gui.learn.report.markup import Html
from trainers.contract import events


def figure_of(values: list[float], **more: Any) -> Html | None:
    """Return the chart of a run with these losses, one per step."""
    series = Series(1)
    rest = dict.fromkeys(events.FIELDS["step"], 1.0)
    series.feed(
        {**rest, "seq": at, "kind": "step", "step": at, "time_unix_s": 1e9 + at, "loss": value}
        for at, value in enumerate(values, 1)
    )
    run: Any = SimpleNamespace(series=series, samples_at=series.samples_at)
    return charts.chart_of_curve([ShownRun(name="<b>", index=8, run=run)], "loss", "step", 500, **more)


def test_a_chart_without_a_point_is_none_and_a_peak_survives_thinning() -> None:
    assert figure_of([math.nan] * 10) is None
    values = [1.0] * 20_000
    values[7_777] = 9.0
    made = figure_of(values)
    assert made is not None and len(made) < 12_000
    assert "&lt;b&gt;: from 1 to 1" in made
    (line,) = json.loads(html.unescape(re.findall(r'data-figure="([^"]*)"', made)[0]))["lines"]
    assert line["index"] == 8 and len(line["x"]) <= 500
    assert line["y"][line["x"].index(7_778)] == 9, "the peak is drawn"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (markup.number(0.123456), "0.1235"),
        (markup.number(12345.6), "12,346"),
        (markup.number(1e-7), "1.00e-07"),
        (markup.number(100.0), "100"),
        (markup.number(None), "–"),
        (markup.loss(math.nan), "–"),
        (markup.metric("accuracy", 0.9583), "95.8%"),
        (markup.size(2.5e6), "2.5 MB"),
        (markup.short_time(0.00324), "3.24 ms"),
        (markup.short_time(7265), "2 h 01 min"),
        (markup.moment(1e300), "–"),
    ],
)
def test_numbers_are_written_as_on_the_page(made: str, words: str) -> None:
    assert made == words
