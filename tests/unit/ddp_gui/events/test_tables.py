"""Columns that grow: what is kept, thinned, smoothed and sent."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_the_mean_of_the_newest_is_that_of_numpy_and_leaves_gaps_out() -> None:
    table = Table(("loss",))
    values = np.random.default_rng(0).normal(size=500).astype(np.float32)
    values[100] = np.nan
    table.extend(range(500), range(500), range(500), values[None])
    smooth = table.mean_of_newest("loss", 30, 90, 500)
    expected = [np.nanmean(values[max(0, at - 29) : at + 1]) for at in range(90, 500)]
    np.testing.assert_allclose(smooth, expected, atol=1e-6)


def test_the_first_steps_have_the_mean_of_what_there_is() -> None:
    assert table_of(3).mean_of_newest("rate", 10, 0, 3).tolist() == [1.0, 1.5, 2.0]


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
