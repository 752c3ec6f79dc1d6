"""Step time and throughput cover the same full steps, so that their product is the batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ddp_gui.events.analysis import pace as pace_module
from ddp_gui.events.analysis.pace import WINDOW_S
from ddp_gui.events.series import Series

BATCH = 128
NUM_TRAIN = 5 * BATCH + 16  # the sixth step of each epoch has 16 samples
STEPS_PER_EPOCH = 6


def plan(*, global_batch: int = BATCH, num_train: int = NUM_TRAIN) -> dict[str, Any]:
    return {"kind": "plan", "global_batch": global_batch, "num_train": num_train, "num_steps": 10_000}


def step(number: int, seconds: float, *, per_epoch: int = STEPS_PER_EPOCH) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "epoch": (number - 1) // per_epoch,
        "loss": 1.0,
        "lr": 0.1,
        "grad_norm": None,
        "samples_per_s": 1.0,
        "step_time_s": seconds,
        "data_time_s": 0.0,
    }


def fed(*events: dict[str, Any]) -> Series:
    series = Series()
    series.feed({"seq": seq, "time_unix_s": 1000.0 + seq} | event for seq, event in enumerate(events))
    return series


def steps_of_epochs(num_epochs: int, whole_s: float, cut_s: float) -> list[dict[str, Any]]:
    times = itertools.chain(*[[whole_s] * 5 + [cut_s]] * num_epochs)
    return [step(number, seconds) for number, seconds in enumerate(times, start=1)]


@pytest.mark.parametrize("is_over", [False, True])
def test_the_cut_batch_at_the_end_of_an_epoch_is_in_neither_number(is_over: bool) -> None:
    pace = pace_module.pace_of_run(
        fed(plan(), *steps_of_epochs(4, whole_s=0.0285, cut_s=0.0063)), is_over=is_over
    )
    assert pace is not None
    assert pace.step_time_s == pytest.approx(0.0285)
    assert pace.samples_per_s * pace.step_time_s == pytest.approx(BATCH)
    assert pace.num_steps == 20
    assert pace.is_whole_run is is_over


def test_a_live_run_shows_its_newest_seconds_and_an_ended_one_all_of_it() -> None:
    slow, quick = 0.5, 0.1
    steps = [step(number, slow if number <= 100 else quick, per_epoch=1000) for number in range(1, 201)]
    live, ended = (
        pace_module.pace_of_run(fed(plan(num_train=10**6), *steps), is_over=is_over)
        for is_over in (False, True)
    )
    assert live is not None and live.step_time_s == pytest.approx(quick)
    assert live.num_steps == pytest.approx(WINDOW_S / quick, abs=1)
    assert ended is not None and ended.mean_step_time_s == pytest.approx((100 * slow + 99 * quick) / 199)
    assert ended.step_time_s == pytest.approx(slow), "the median of 100 slow and 99 quick ones"


def test_after_a_resume_with_another_batch_only_its_own_steps_count() -> None:
    before = [step(number, 0.02, per_epoch=1000) for number in range(1, 31)]
    after = [step(number, 0.01, per_epoch=1000) for number in range(21, 41)]
    events = [plan(num_train=10**6), *before, plan(global_batch=64, num_train=10**6), *after]
    found = pace_module.pace_of_run(fed(*events), is_over=True)
    assert (found.num_steps, found.samples_per_s) == (20, pytest.approx(6400.0))
