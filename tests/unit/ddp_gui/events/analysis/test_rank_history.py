"""Tests of a rank's step breakdown over the run: means of slices, median and 95th percentile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ddp_gui.events.analysis import pace
from ddp_gui.events.series import RANK_PARTS, Series

Event = dict[str, Any]
PLACE = {name: index for index, name in enumerate(RANK_PARTS)}


def run(num_samples: int, step_s: Callable[[int, int], float | None], **parts: float | None) -> Series:
    """Return a made-up series of `ranks` events of two ranks, one per second."""
    series = Series()
    series.feed(
        {
            "seq": number,
            "time_unix_s": 1000.0 + number,
            "kind": "ranks",
            "ranks": [
                {"rank": rank, "step": number, "step_time_s": step_s(rank, number), **parts}
                for rank in (0, 1)
            ],
        }
        for number in range(num_samples)
    )
    return series


def test_median_and_95th_percentile_are_those_of_the_samples() -> None:
    times = np.random.default_rng(0).gamma(2.0, 0.01, 500)
    found = pace.rank_history_of_run(run(500, lambda rank, number: float(times[number]) * (rank + 1)))
    assert [entry["rank"] for entry in found] == [0, 1]
    for entry in found:
        scale = entry["rank"] + 1
        assert entry["median_s"] == pytest.approx(np.median(times) * scale, rel=1e-3)
        assert entry["p95_s"] == pytest.approx(np.percentile(times, 95) * scale, rel=1e-3)
        assert entry["num_samples"] == 500


def test_few_samples_have_no_95th_percentile_and_a_step_counts_once() -> None:
    """A paused rank repeats its last step in its reports, once a second."""
    found = {num: pace.rank_history_of_run(run(num, lambda *_: 0.1))[0] for num in (6, 19, 20)}
    assert [entry["p95_s"] for entry in found.values()] == [None, None, pytest.approx(0.1)]
    assert (found[6]["num_samples"], found[6]["first_step"], found[6]["last_step"]) == (6, 0, 5)
    series = run(3, lambda _, number: 0.1 * (number + 1))
    last = {"rank": 0, "step": 2, "step_time_s": 0.3}
    again = [{"seq": 3 + n, "time_unix_s": 1003.0 + n, "kind": "ranks", "ranks": [last]} for n in range(50)]
    series.feed(again)
    paused = pace.rank_history_of_run(series)[0]
    assert (paused["num_samples"], paused["median_s"]) == (3, pytest.approx(0.2))


def test_slices_are_means_in_order_and_never_many() -> None:
    (first, _) = pace.rank_history_of_run(run(400, lambda _, number: float(number), wait_time_s=0.5))
    steps = [part[PLACE["step"]] for part in first["slices"]]
    assert len(steps) == pace.MAX_SLICES
    assert steps == pytest.approx([4.5 + 10 * number for number in range(40)], rel=1e-3)
    assert {part[PLACE["wait"]] for part in first["slices"]} == {0.5}
    assert {part[PLACE["forward"]] for part in first["slices"]} == {None}, "not measured, and not 0"


def test_a_rank_without_a_measured_step_has_no_history() -> None:
    found = pace.rank_history_of_run(run(5, lambda rank, _: None if rank == 1 else 0.1))
    assert [entry["rank"] for entry in found] == [0]
    assert pace.rank_history_of_run(Series()) == []
