"""Comparisons of a run with trivial predictors and with its own beginning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddp_gui.events.series import Series
from trainers.contract import events
from trainers.contract.events import Event

MIN_WITHOUT_EXPONENT = 0.001
MIN_WITH_SEPARATORS = 1_000
MIN_LARGE_WITH_EXPONENT = 1e9


def short(value: float) -> str:
    """Return a number with three digits: 0.0123, 12,345, 1.23e-4 (as in assets/js/shared/format.js)."""
    size = abs(value)
    if not math.isfinite(value) or MIN_WITHOUT_EXPONENT <= size < MIN_WITH_SEPARATORS or size == 0:
        return f"{value:.3g}"
    if MIN_WITH_SEPARATORS <= size < MIN_LARGE_WITH_EXPONENT:
        return f"{value:,.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}e{int(exponent):+d}"


STEPS_TO_JUDGE_LOSS = 300
SECONDS_TO_JUDGE_LOSS = 15.0
WORSE_EVALUATIONS = 3
CLEARLY_WORSE = 1.1
MUCH_WORSE = 1.3
NEARLY_AS_GOOD = 1.03
SMALL_RISE = 0.05  # minimum difference: the ratio of losses near zero is noisy
MIN_STEPS_OF_A_RUN = 10
BETTER_LOSS_RATIO = 0.9
LATEST_STEPS = 30
STEPS_AT_EACH_END = 10  # the default window of the loss chart's smoothing
FAR_ABOVE = 2.0
STEPS_OF_A_JUMP = 5  # more than one step, because an outlier in a batch raises the loss of one step


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An evaluation compared with the trivial predictor.

    Attributes:
        trivial: the field of the `plan` event.
        value: the evaluation's value of the same metric.
        num_errors: difference in standard errors; negative if the evaluation is worse.
        step: the evaluation's step.
    """

    trivial: Mapping[str, Any]
    value: float
    num_errors: float
    step: int

    @property
    def is_better(self) -> bool:
        """True if the evaluation is better by more than the standard error."""
        return self.num_errors > 1

    @property
    def has_one_answer(self) -> bool:
        """True if the trivial predictor is always correct, so there is nothing to learn."""
        perfect = {"accuracy": 1.0, "perplexity": 1.0}.get(self.trivial["metric"], 0.0)
        return bool(abs(self.trivial["value"] - perfect) < 1e-9)


def compare(series: Series, evaluation: Event | None = None) -> Comparison | None:
    """Return the comparison of an evaluation with the trivial predictor.

    None if there is no evaluation, if its metric is NaN, or if an old version of the program did not record
    the trivial predictor.

    Args:
        evaluation: the evaluation; None: the last one.
    """
    trivial = series.plan.get("trivial")
    evaluation = series.evaluations.last if evaluation is None else evaluation
    metrics = evaluation.get("metrics", {})
    if trivial is None or trivial["metric"] not in events.PRIMARY_METRICS:
        return None
    value = metrics.get(trivial["metric"])
    if value is None:
        return None
    gain = value - trivial["value"]
    gain = gain if events.PRIMARY_METRICS[trivial["metric"]] else -gain
    error = trivial["standard_error"]
    num_errors = gain / error if error > 0 else math.copysign(math.inf, gain) if gain else 0.0
    return Comparison(trivial=trivial, value=value, num_errors=num_errors, step=evaluation["step"])


def trivial_train_loss(trivial: Mapping[str, Any]) -> float:
    """Return the trivial predictor's loss on the training split, or on validation if that is unknown."""
    return float(trivial.get("train_loss", trivial["loss"]))


def loss_in_parts(series: Series) -> list[float] | None:
    """Return the first step's loss and the median of each tenth, or None if it is too early to judge."""
    loss = series.steps.column("loss")
    is_over = series.state.get("state") in events.ENDED_STATES
    is_long = len(loss) >= STEPS_TO_JUDGE_LOSS and series.active_s() >= SECONDS_TO_JUDGE_LOSS
    if not is_long and not (is_over and len(loss) >= MIN_STEPS_OF_A_RUN):
        return None
    return medians_of_tenths(loss) if np.isfinite(loss[-1]) else None


def medians_of_tenths(loss: npt.NDArray[np.float32]) -> list[float] | None:
    """Return the loss of the first step and the median of each tenth except the first.

    None if a tenth has no finite number. Only the first step's loss precedes any update: with a learning rate
    that is far too high, the second step's loss is already far off.
    """
    parts = [part[np.isfinite(part)] for part in np.array_split(loss, min(10, len(loss)))]
    if any(len(part) == 0 for part in parts):
        return None
    return [float(parts[0][0]), *(float(np.median(part)) for part in parts[1:])]


def loss_jump(series: Series) -> str | None:
    """Return a sentence about five successive steps with a loss far above the initial loss, or None.

    The initial loss is the first step's loss, or the trivial predictor's loss if higher, because the first
    batch may be easy.
    """
    loss = series.steps.column("loss")
    finite = np.flatnonzero(np.isfinite(loss))
    if len(finite) <= STEPS_OF_A_JUMP:
        return None
    trivial = series.plan.get("trivial") or {}
    initial = max(float(loss[finite[0]]), trivial_train_loss(trivial) if trivial else 0.0)
    lowest_of_five = np.lib.stride_tricks.sliding_window_view(loss[finite], STEPS_OF_A_JUMP).min(axis=1)
    worst = int(np.argmax(lowest_of_five))
    if lowest_of_five[worst] <= FAR_ABOVE * initial + SMALL_RISE:
        return None
    steps = series.steps.x("step")[finite[[worst, worst + STEPS_OF_A_JUMP - 1]]]
    return (
        f"The training loss began at {short(initial)} and was at least {short(lowest_of_five[worst])} "
        f"in steps {steps[0]:,} to {steps[1]:,}."
    )


def loss_at_ends(series: Series, direction: int) -> tuple[float, float, int]:
    """Return the median loss of the first n and of the last n steps, and n.

    n is the first of 10, a tenth of the run and 1 for which the loss changed in this direction.

    Args:
        direction: -1 if the loss is reported to fall, 1 if it is reported to rise.
    """
    loss = series.steps.column("loss")
    tenth = max(1, len(loss) // 10)
    candidates = [
        (_median(loss[:num_steps]), _median(loss[-num_steps:]), num_steps)
        for num_steps in (min(STEPS_AT_EACH_END, tenth), tenth, 1)
    ]
    return next((ends for ends in candidates if (ends[1] - ends[0]) * direction > 0), candidates[0])


def compared_steps_text(num_steps: int) -> str:
    """Return a text that names the steps that `loss_at_ends` compared."""
    return (
        "first and last step" if num_steps == 1 else f"medians of the first and the last {num_steps:,} steps"
    )


def _median(loss: npt.NDArray[np.float32]) -> float:
    finite = loss[np.isfinite(loss)]
    return float(np.median(finite)) if len(finite) else math.nan


def training_loss_at(series: Series, step: int) -> float | None:
    """Return the median loss of the last steps up to `step`."""
    last = int(np.searchsorted(series.steps.x("step"), step, side="right"))
    loss = series.steps.column("loss")[max(0, last - LATEST_STEPS) : last]
    return _median(loss) if np.isfinite(loss).any() else None


def overfits_since(series: Series) -> Event | None:
    """Return the last good evaluation of an overfitting model, or None if it does not overfit.

    Reported overfitting stays reported until the validation is nearly as good again (hysteresis), so that the
    message does not appear and disappear as the validation fluctuates.
    """
    evaluations = [event for event in series.evaluations.all if event["loss"] is not None]
    best, num_after, is_reported = None, 0, False
    for event in evaluations:
        if best is None or event["loss"] < best["loss"]:
            best, num_after, is_reported = event, 0, False
            continue
        num_after += 1
        rise, ratio = event["loss"] - best["loss"], event["loss"] / max(best["loss"], 1e-12)
        is_worse = (ratio >= CLEARLY_WORSE and _metric_is_worse(series, best, event)) or (
            ratio >= MUCH_WORSE and rise >= SMALL_RISE
        )
        is_reported = (num_after >= WORSE_EVALUATIONS and is_worse) or (
            is_reported and ratio >= NEARLY_AS_GOOD
        )
    if best is None or not is_reported:
        return None
    loss_then, loss_now = (
        training_loss_at(series, best["step"]),
        training_loss_at(series, evaluations[-1]["step"]),
    )
    if loss_then is None or loss_now is None or loss_now > BETTER_LOSS_RATIO * loss_then:
        return None
    return best


def _metric_is_worse(series: Series, best: Event, event: Event) -> bool:
    """Return True if the main metric got worse by more than chance explains for this number of samples."""
    name = events.primary_metric(event["metrics"])
    best_value, value = best["metrics"].get(name), event["metrics"].get(name)
    if name is None or best_value is None or value is None:
        return False
    decline = best_value - value if events.PRIMARY_METRICS[name] else value - best_value
    return bool(decline > metric_noise(series, best_value))


def metric_noise(series: Series, value: float) -> float:
    """Return how much a metric may differ by chance: two standard errors of a share, else 1/50."""
    num_samples = series.plan.get("num_validation") or 0
    if 0 <= value <= 1 and num_samples:
        return 2 * math.sqrt(max(value * (1 - value), 1 / num_samples) / num_samples)
    return abs(value) / 50
