"""Tests of growing columns: storage, thinning, smoothing and sending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ddp_gui.events import tables
from ddp_gui.events.tables import ChartView, Table, thin


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


def test_thinning_keeps_the_highest_and_the_lowest() -> None:
    y = np.zeros(50_000, np.float32)
    y[12_345], y[40_000] = 9.0, -9.0
    chosen = thin(np.arange(50_000), y, 1000)
    assert len(chosen) <= 1000
    assert {12_345, 40_000} <= set(chosen.tolist())


def test_looks_that_are_the_same_share_their_messages() -> None:
    assert {ChartView(axis="time", smoothing=5), ChartView(axis="time", smoothing=5)} == {
        ChartView(axis="time", smoothing=5)
    }
