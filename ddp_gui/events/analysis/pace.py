"""Speed of a run over time, of all ranks and of each rank."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddp_gui.events.series import RANK_PARTS, Series
from ddp_gui.events.tables import GrowingTable

WINDOW_S = 5.0
MIN_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The duration of a complete step, and the resulting samples per second.

    Attributes:
        step_time_s: the mean over the window while the run is live, the median after its end.
        samples_per_s: of all ranks together: the global batch divided by `step_time_s`.
        num_steps: complete steps in the window.
        mean_step_time_s: the mean over the window; equals `step_time_s` while the run is live.
        is_whole_run: True if the window is the entire run, False if it is only the last seconds.
    """

    step_time_s: float
    samples_per_s: float
    num_steps: int
    mean_step_time_s: float
    is_whole_run: bool


def speed_up(run: Pace | None, base: Pace | None) -> float | None:
    """Return the ratio of two runs' samples per second, or None if either is unknown.

    Lessons, the lab report and the page (`speedUp` in `assets/js/runs/scaling.js`) use this
    definition. The speed of an ended run comes from the median step, because one disturbed step would change
    the mean of a short run.
    """
    return None if run is None or base is None else run.samples_per_s / base.samples_per_s


def pace_of_run(series: Series, *, is_over: bool) -> Pace | None:
    """Return the duration of a complete step, or None if it is not known yet or the run was too short."""
    global_batch = series.plan.get("global_batch")
    if not isinstance(global_batch, int) or global_batch < 1:
        return None  # not known yet, or the file is damaged
    return pace_of_steps(
        series.steps,
        global_batch=global_batch,
        # The number of samples of a script may be unknown.
        num_train=series.plan.get("num_train") or global_batch,
        since_step=series.planned_at_step,
        is_over=is_over,
    )


def pace_of_steps(
    steps: GrowingTable, *, global_batch: int, num_train: int, since_step: int, is_over: bool
) -> Pace | None:
    """Return the pace of a run, or None if too few complete steps were measured.

    Args:
        steps: the columns of its step events.
        global_batch: samples that all ranks together process in a complete step.
        num_train: samples in an epoch; if not divisible by the global batch, an epoch's last step has fewer.
        since_step: `global_batch` applies from this step on; before, the run had another value.
        is_over: True if the run has ended.
    """
    first = int(np.searchsorted(steps.x("step"), since_step))
    times = steps.column("step_time")[first:].astype(np.float64)
    epochs = steps.column("epoch")[first:]
    if num_train % global_batch:
        # Exclude the last step of an epoch, which is smaller, and the latest step, which may be the last of
        # its epoch.
        is_complete = np.diff(epochs, append=np.nan) == 0
        times = times[is_complete]
    times = times[np.isfinite(times) & (times > 0)]
    if not is_over:
        newest_first = np.cumsum(times[::-1])
        num_recent = int(np.searchsorted(newest_first, WINDOW_S, side="right"))
        times = times[len(times) - max(num_recent, min(MIN_STEPS, len(times))) :]
    if len(times) < MIN_STEPS:
        return None
    mean = float(np.mean(times))
    step_time_s = float(np.median(times)) if is_over else mean
    return Pace(
        step_time_s=step_time_s,
        samples_per_s=global_batch / step_time_s,
        num_steps=len(times),
        mean_step_time_s=mean,
        is_whole_run=is_over,
    )


MAX_SLICES = 40
# Minimum number of samples for a 95th percentile, which is otherwise almost the maximum.
MIN_FOR_P95 = 20
DIGITS = 4
MORE_DIGITS = 9


def rank_history_of_run(series: Series) -> list[dict[str, Any]]:
    """Return each rank's median and 95th percentile of sampled steps, and the means of slices of the run.

    `p95_s` is null for fewer than `MIN_FOR_P95` samples; `first_step` and `last_step` are the range of the
    sampled steps. A slice is a list of seconds, in the order of `RANK_PARTS`; null for a part that was not
    measured.
    """
    return [
        {"rank": rank, **_summarise_rank(table)}
        for rank, table in sorted(series.ranks.items())
        if table.length > 0
    ]


def _summarise_rank(table: GrowingTable) -> dict[str, Any]:
    step = table.column("step").astype(np.float64)
    parts = np.array([table.column(name) for name in RANK_PARTS], np.float64)
    slices = np.array_split(parts, min(MAX_SLICES, table.length), axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a part that was never measured has no mean
        means = [np.nanmean(chunk, axis=1) for chunk in slices]
    return {
        "num_samples": table.length,
        "first_step": int(table.x("step")[0]),
        "last_step": int(table.x("step")[-1]),
        # The page rounds again: rounding twice to few digits is not rounding to the nearest.
        "median_s": _round(float(np.median(step)), MORE_DIGITS),
        "p95_s": _round(float(np.percentile(step, 95)), MORE_DIGITS) if table.length >= MIN_FOR_P95 else None,
        "slices": [[_round(float(value)) for value in mean] for mean in means],
    }


def _round(value: float, digits: int = DIGITS) -> float | None:
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None
