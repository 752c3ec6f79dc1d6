"""A run's columns: what clients are sent, smoothing, a resume from an older checkpoint, and replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ddp_gui.events import run_view, tables
from ddp_gui.events.fold import Evaluations
from ddp_gui.events.series import Series
from ddp_gui.events.tables import MAX_POINTS, ChartView


def step(
    number: int, seq: int, *, loss: float | None = None, time_unix_s: float | None = None
) -> dict[str, Any]:
    return {
        "seq": seq,
        "time_unix_s": 1000.0 + seq * 0.1 if time_unix_s is None else time_unix_s,
        "kind": "step",
        "step": number,
        "epoch": 0,
        "loss": 1.0 / number if loss is None else loss,
        "lr": 0.1,
        "grad_norm": None,
        "samples_per_s": 100.0,
        "step_time_s": 0.1,
        "data_time_s": 0.0,
    }


def read(traces: dict[str, Any]) -> dict[str, Any]:
    """Return traces as decoded by a browser."""
    as_json: dict[str, Any] = json.loads(run_view.encode_message(traces))
    return as_json


def evaluation(at_step: int, seq: int, **metrics: float) -> dict[str, Any]:
    return {
        "seq": seq, "time_unix_s": 1000.0, "kind": "eval", "step": at_step, "epoch": 0, "loss": 0.5,
        "metrics": metrics,
    }  # fmt: skip


def state(name: str, seq: int, time_unix_s: float) -> dict[str, Any]:
    return {"seq": seq, "time_unix_s": time_unix_s, "kind": "state", "state": name, "reason": ""}


def test_curves_over_samples_and_time_are_smoothed_over_samples_and_time() -> None:
    series = Series()
    plan = {"seq": 0, "time_unix_s": 1000.0, "kind": "plan", "num_train": 100, "global_batch": 32}
    series.feed([plan, *(step(n, n, loss=float(n % 2)) for n in range(1, 41))])
    assert series.samples_at([3, 4, 5]).tolist() == [96.0, 100.0, 132.0], "an epoch's last step has 4 samples"
    for over, span in (("samples", 3200), ("time", 10)):
        view = ChartView(smoothing=span, smooth_over=over)
        smooth = read(series.snapshot(view))["loss_smooth"]["y"]
        # 64 of 100 samples are in steps with the loss 1, but only every second step is.
        assert smooth[-1] == pytest.approx({"samples": 0.64, "time": 0.5}[over], abs=0.02), over
        assert read(series.delta(20, view))["loss_smooth"]["y"][-1] == pytest.approx(smooth[-1], abs=1e-3)
    plan["global_batch"] = "many"  # a damaged file
    series.feed([{**plan, "seq": 41}])
    assert "loss_smooth" in series.snapshot(ChartView(smoothing=3200, smooth_over="samples"))


def test_a_long_curve_is_thinned_and_keeps_its_peaks_and_a_range_has_all_points() -> None:
    series = Series()
    series.feed(step(n, n - 1, loss=99.0 if n == 54_321 else 1.0) for n in range(1, 100_001))
    curve = read(series.snapshot())["loss"]
    assert len(curve["x"]) <= MAX_POINTS
    assert max(value for value in curve["y"] if value is not None) == 99.0
    assert (curve["x"][0], curve["x"][-1]) == (1, 100_000)
    assert read(series.range(500, 520))["loss"]["x"] == list(range(499, 522))


def test_a_resume_from_an_older_checkpoint_goes_on_from_there() -> None:
    series = Series()
    series.feed([step(n, n - 1) for n in range(1, 11)])
    series.feed([evaluation(5, 10, accuracy=0.5), evaluation(10, 11, accuracy=0.9)])
    before = series.next_seq
    series.feed([step(6, 12), step(7, 13)])
    assert read(series.snapshot())["loss"]["x"] == [1, 2, 3, 4, 5, 6, 7]
    assert series.rewound_at_seq >= before, "a client from before gets a snapshot"
    assert series.evaluations.best == {"name": "accuracy", "value": 0.5, "step": 5}


@pytest.mark.parametrize(
    ("values", "name", "best"), [((0.5, 0.8, 0.7), "accuracy", 0.8), ((9.0, 3.0, 4.0), "perplexity", 3.0)]
)
def test_best_is_highest_accuracy_lowest_loss(values: tuple[float, ...], name: str, best: float) -> None:
    evaluations = Evaluations()
    for number, value in enumerate(values, start=1):
        evaluations.add(evaluation(number, number, **{name: value}))
    assert evaluations.best is not None
    assert evaluations.best["value"] == best


def test_paused_time_is_known_and_ends_with_a_resume_a_stop_or_a_restart() -> None:
    """Between a kill during a pause and the restart, a run is neither active nor paused."""
    series = Series()
    series.feed([state("starting", 0, 1000.0), state("running", 1, 1001.0), state("paused", 2, 1010.0)])
    assert (series.paused_s(), series.paused_s(1025.0)) == (0.0, 15.0)
    series.feed([state("running", 3, 1030.0), state("paused", 4, 1040.0), step(1, 5, time_unix_s=1043.0)])
    assert series.paused_s() == pytest.approx(23.0)
    series.feed([state("starting", 6, 2000.0), state("running", 7, 2001.0), step(2, 8, time_unix_s=2009.0)])
    assert series.paused_s(2050.0) == pytest.approx(23.0)
    series.feed([state("paused", 9, 2010.0), state("stopping", 10, 2015.0), state("stopped", 11, 2016.0)])
    assert (series.active_s(), series.paused_s()) == (pytest.approx(59.0), pytest.approx(28.0))


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


@pytest.mark.parametrize("span", [2, 100, 10_000])
def test_the_moving_average_is_that_of_its_definition_and_leaves_gaps_out(span: int) -> None:
    values = np.random.default_rng(0).normal(2.0, size=5000)
    values[[0, 100, 4000]] = np.nan, np.nan, np.inf
    np.testing.assert_allclose(tables.moving_average(values, span), average_by_hand(values, span), rtol=1e-9)


SAME, OTHER = "00aa11bb22cc33dd", "ffee44dd55cc66bb"


def compared(number: int, seq: int, *, distance: float = 0.0) -> dict[str, Any]:
    hashes = [SAME, SAME if distance == 0.0 else OTHER]
    return {
        "seq": seq,
        "time_unix_s": 1000.0 + seq,
        "kind": "fingerprints",
        "step": number,
        "hashes": hashes,
        "distances": [0.0, distance],
    }


def start(seq: int) -> dict[str, Any]:
    return {"seq": seq, "time_unix_s": 1000.0 + seq, "kind": "state", "state": "starting", "reason": ""}


def shown(*fed: dict[str, Any]) -> dict[str, Any]:
    series = Series()
    series.feed(fed)
    found: dict[str, Any] = json.loads(run_view.encode_message({"shown": series.fingerprints.shown()}))[
        "shown"
    ]
    return found


def test_replicas_differ_since_the_first_of_the_newest_comparisons_that_say_so() -> None:
    found = shown(
        compared(1, 0), compared(2, 1, distance=0.1), compared(3, 2), compared(4, 3, distance=0.2),
        compared(5, 4, distance=0.3),
    )  # fmt: skip
    assert not found["is_identical"]
    assert (found["differ_since"], found["identical_until"]) == (4, 3)
    assert found["curve"] == {"steps": [1, 2, 3, 4, 5], "distances": [[0.0] * 5, [0.0, 0.1, 0.0, 0.2, 0.3]]}


def test_a_resume_forgets_what_came_after_its_checkpoint_but_not_what_it_says_itself() -> None:
    """The first comparison after a resume may precede the first step in the file."""
    first = [start(0), *(step(number, number) for number in range(1, 8))]
    before = [compared(4, 8), compared(7, 9, distance=0.5)]
    again = [start(10), compared(5, 11), step(5, 12), step(6, 13)]
    found = shown(*first, *before, *again)
    assert [item["step"] for item in found["newest"]] == [4, 5]
    assert found["is_identical"]
    assert [item["step"] for item in shown(*first, *before, start(10), step(5, 11))["newest"]] == [4]
