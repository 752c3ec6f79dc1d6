"""Tests of a report's charts: axes, paths, and numbers as text."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from ddp_gui.learn.report import charts, markup
from ddp_gui.learn.report.charts import Axis, Chart, Curve, Line, draw_chart, path_of


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0, 100, ["0", "20", "40", "60", "80", "100"]),
        (0, 0.31, ["0.0", "0.1", "0.2", "0.3"]),
        (1234, 1236, ["1,234.0", "1,234.5", "1,235.0", "1,235.5", "1,236.0"]),
        (0, 4e12, ["0", "1e+12", "2e+12", "3e+12", "4e+12"]),
    ],
)
def test_ticks_are_round_and_as_precise_as_they_must_be(low: float, high: float, words: list[str]) -> None:
    assert [label for _, label in Axis(low=low, high=high).ticks(5)] == words


def test_ticks_of_shares_and_of_logarithms() -> None:
    shares = Axis(low=0.9, high=0.95, is_share=True).ticks(5)
    assert [label for _, label in shares] == ["90%", "91%", "92%", "93%", "94%", "95%"]
    powers = Axis(low=-3, high=1, is_logarithmic=True).ticks(5)
    assert [label for _, label in powers] == ["0.001", "0.01", "0.1", "1", "10"]


def test_an_axis_holds_all_that_is_there_and_never_has_no_length() -> None:
    gap = np.array([1.0, math.nan, 3.0])
    made = charts.y_axis([gap])
    assert made.low < 1 and made.high > 3
    flat = charts.y_axis([np.array([2.0, 2.0])])
    assert flat.low < 2 < flat.high
    assert charts.y_axis([np.array([5.0])], from_zero=True).low == 0
    assert charts.x_axis([np.array([1.0])]).low == 0 and charts.x_axis([]).high == 1
    zeros = charts.y_axis([np.array([0.0, 10.0])], is_logarithmic=True)
    assert zeros.low < 1 < zeros.high, "zero has no logarithm, and is left out"


def test_a_path_goes_in_small_steps_and_stops_at_gaps() -> None:
    up = np.array([5.0, 3.0, math.nan, 7.0, 7.0, math.nan])
    assert path_of(np.array([0.0, 10, 20, 30, 40, 50]), up) == "M0 5l10-2M30 7l10 0"
    assert path_of(np.array([4.0]), np.array([2.0])) == "M4 2l0 0"
    assert path_of(np.empty(0), np.empty(0)) == ""


def test_a_chart_without_a_point_is_none_and_a_peak_survives_thinning() -> None:
    x = np.arange(100_000.0)
    y = np.ones(100_000)
    y[77_777] = 9.0
    nothing = Line(name="n", index=0, curve=Curve(x=x, y=np.full(len(x), np.nan)))
    assert draw_chart(Chart(title="loss", x_words="step", y_words="loss", lines=[nothing]), 500) is None
    line = Line(name="<b>", index=8, curve=Curve(x=x, y=y))
    made = draw_chart(Chart(title="loss", x_words="step", y_words="loss", lines=[nothing, line]), 500)
    assert made is not None and len(made) < 12_000
    (path,) = re.findall(r'd="M[^"]*l([^"]*)" class="line c1 d3" data-name="&lt;b&gt;"', made)
    rises = [int(number) for number in re.findall(r"-?\d+", path)][1::2]
    assert min(rises) < -50_000, "the peak is drawn"


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
