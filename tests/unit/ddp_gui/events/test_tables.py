"""Tests of growing columns: storage, thinning, smoothing and sending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ddp_gui.events import tables
from ddp_gui.events.tables import ChartView, Table, shown, thin


def table_of(count: int) -> Table:
    table = Table(("loss", "rate"))
    numbers = np.arange(1, count + 1)
    table.extend(numbers - 1, numbers, numbers * 0.5, np.stack([1.0 / numbers, numbers]))
    return table


def test_rows_survive_growing_piece_by_piece() -> None:
    table = Table(("loss",))
    for number in range(1000):
        table.append(number, number + 1, number * 0.1, {"loss": float(number)})
    assert table.column("loss").tolist() == list(range(1000))
    assert table.x("step")[-1] == 1000
    assert table.x("time")[-1] == pytest.approx(99.9)


def test_a_missing_value_is_a_gap() -> None:
    table = Table(("loss", "rate"))
    table.append(0, 1, 0.0, {"loss": None})
    assert np.isnan(table.column("loss")[0])
    assert np.isnan(table.column("rate")[0])


def test_a_range_has_one_more_point_on_each_side() -> None:
    table = table_of(100)
    assert table.between(10, 20, "step") == (8, 21)
    assert table.between(5.0, 10.0, "time") == (8, 21)
    assert table.between(-5, 1000, "step") == (0, 100)


def average_by_hand(values: Sequence[float], span: int) -> list[float]:
    """Return the moving average computed from its definition, one value at a time."""
    total = weight = 0.0
    averages = []
    for value in values:
        total, weight = total * (1 - 2 / (span + 1)), weight * (1 - 2 / (span + 1))
        if np.isfinite(value):
            total, weight = total + 2 / (span + 1) * value, weight + 2 / (span + 1)
        averages.append(total / weight if weight else np.nan)
    return averages


@pytest.mark.parametrize("span", [2, 10, 100, 1000, 10_000])
def test_the_moving_average_is_that_of_its_definition_and_leaves_gaps_out(span: int) -> None:
    values = np.random.default_rng(0).normal(2.0, size=5000)
    values[[0, 100, 4000]] = np.nan, np.nan, np.inf
    np.testing.assert_allclose(tables.moving_average(values, span), average_by_hand(values, span), rtol=1e-9)


@pytest.mark.parametrize("span", [10, 100])
def test_a_slice_is_smoothed_as_the_whole_is(span: int) -> None:
    """Starting in the middle, without the values before the slice, does not change the curve."""
    table = Table(("loss",))
    values = np.linspace(5.0, 1.0, 5000, dtype=np.float32)[None]
    table.extend(range(5000), range(5000), range(5000), values)
    whole = table.smoothed("loss", span, 0, 5000)
    for first in (0, 1, 50, 2000, 4999):
        np.testing.assert_allclose(table.smoothed("loss", span, first, 5000), whole[first:], rtol=1e-6)


def test_runs_of_other_batches_are_smoothed_over_as_many_samples() -> None:
    """The same loss over samples gives the same curve, whether a step has 32 samples or 64."""
    smoothed = {}
    for batch in (32, 64):
        samples = np.arange(batch, 6_401, batch)
        table = Table(("loss",))
        table.extend(samples, samples // batch, samples * 0.01, [2.0 * np.exp(-samples / 1_500)])
        over_samples = table.smoothed("loss", 640, 0, table.length, samples, is_weighted=True)
        over_steps = table.smoothed("loss", 20, 0, table.length)
        smoothed[batch] = (over_samples[samples % 64 == 0], over_steps[samples % 64 == 0])
        for first in (1, 17, 40):
            later = table.smoothed("loss", 640, first, table.length, samples, is_weighted=True)
            np.testing.assert_allclose(later, over_samples[first:], rtol=1e-4)
    (one, one_steps), (two, two_steps) = smoothed[32], smoothed[64]
    assert np.max(np.abs(one - two)) < 0.03 and one[-1] == pytest.approx(two[-1], rel=0.02)
    assert np.max(np.abs(one_steps - two_steps)) > 0.1, "over as many steps they are two curves"


def test_a_pause_does_not_weigh_in_an_average_over_time() -> None:
    seconds = np.concatenate([np.arange(1, 101) * 0.1, 5_000.0 + np.arange(1, 101) * 0.1])
    table = Table(("loss",))
    values = np.concatenate([np.full(100, 4.0), np.linspace(2.0, 1.0, 100)])
    table.extend(np.arange(200), np.arange(1, 201), seconds, [values])
    smooth = table.smoothed("loss", 1.0, 0, 200, seconds)
    assert smooth[99] == pytest.approx(4.0) and smooth[100] == pytest.approx(2.0), (
        "what was before it is gone"
    )
    assert smooth[150] == pytest.approx(values[150], abs=0.06)


def test_the_first_steps_are_not_pulled_to_zero() -> None:
    assert table_of(3).smoothed("rate", 10, 0, 3)[0] == 1.0


def test_no_average_is_drawn_where_there_is_no_number() -> None:
    table = Table(("loss",))
    values = np.array([[1.0, np.nan, 3.0, np.nan, np.nan]])
    table.extend(range(5), range(1, 6), range(5), values)
    smooth = table.smoothed("loss", 10, 0, 5)
    assert np.isnan(smooth).tolist() == [False, True, False, True, True]
    assert smooth[2] == pytest.approx(average_by_hand([1.0, np.nan, 3.0], 10)[2])


def test_thinning_keeps_the_highest_and_the_lowest() -> None:
    y = np.zeros(50_000, np.float32)
    y[12_345], y[40_000] = 9.0, -9.0
    chosen = thin(np.arange(50_000), y, 1000)
    assert len(chosen) <= 1000
    assert {12_345, 40_000} <= set(chosen.tolist())


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (0.123456789, 0.12346),
        (123456.0, 123460.0),
        (0.0, 0.0),
        (-3.0000004, -3.0),
        (1.23456789e-9, 1.2346e-9),
        (1e-30, 1e-30),
    ],
)
def test_five_digits_are_sent(value: float, sent: float) -> None:
    assert shown(np.array([value]))[0] == pytest.approx(sent, rel=1e-12)


def test_what_is_no_number_is_sent_as_none() -> None:
    assert np.isnan(shown(np.array([np.inf, -np.inf, np.nan]))).all()


def test_looks_that_are_the_same_share_their_messages() -> None:
    assert {ChartView(axis="time", smoothing=5), ChartView(axis="time", smoothing=5)} == {
        ChartView(axis="time", smoothing=5)
    }
