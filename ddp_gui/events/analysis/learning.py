"""What training and validation loss say about learning: judged in tenths, and by evaluations."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ddp_gui.events.series import Series
from trainers.contract import events
from trainers.contract.events import Event

STEPS_TO_JUDGE_LOSS = 300
SECONDS_TO_JUDGE_LOSS = 15.0
WORSE_EVALUATIONS = 3
CLEARLY_WORSE = 1.1
MUCH_WORSE = 1.3
HARDLY_WORSE = 1.03
SMALL_RISE = 0.05  # a loss near zero wobbles by factors
FEWEST_STEPS_OF_A_RUN = 10
CLEARLY_BETTER = 0.9
NEWEST_STEPS = 30
STEPS_AT_EACH_END = 10  # as many as the loss chart smooths over by default


def loss_in_parts(series: Series) -> list[float] | None:
    """Return the loss of the first step and the mean of each tenth of the run, once it can be judged."""
    loss = series.steps.column("loss")
    is_over = series.state.get("state") in events.ENDED_STATES
    is_long = len(loss) >= STEPS_TO_JUDGE_LOSS and series.active_s() >= SECONDS_TO_JUDGE_LOSS
    if not is_long and not (is_over and len(loss) >= FEWEST_STEPS_OF_A_RUN):
        return None
    if not np.isfinite(loss[-1]):
        return None
    parts = [part[np.isfinite(part)] for part in np.array_split(loss, 10)]
    if any(len(part) == 0 for part in parts):
        return None
    # The baseline is the first step, before any update: with a rate that is far too high, the second step's
    # loss is already off.
    return [float(parts[0][0]), *(float(np.mean(part)) for part in parts[1:])]


def loss_at_ends(series: Series, direction: int) -> tuple[float, float, int]:
    """Return the mean loss of the first and of the last n steps, and n.

    n is the first of 10, a tenth of the run and 1 for which the loss changed as claimed.

    Args:
        direction: -1 where the loss is said to fall, 1 where it is said to rise.
    """
    loss = series.steps.column("loss")
    tenth = max(1, len(loss) // 10)
    found = [
        (_mean(loss[:num]), _mean(loss[-num:]), num) for num in (min(STEPS_AT_EACH_END, tenth), tenth, 1)
    ]
    return next((ends for ends in found if (ends[1] - ends[0]) * direction > 0), found[0])


def ends_in_words(num_steps: int) -> str:
    """Return which steps `loss_at_ends` compared."""
    return "first and last step" if num_steps == 1 else f"means of the first and the last {num_steps:,} steps"


def _mean(loss: npt.NDArray[np.float32]) -> float:
    finite = loss[np.isfinite(loss)]
    return float(np.mean(finite, dtype=np.float64)) if len(finite) else math.nan


def training_loss_at(series: Series, step: int) -> float | None:
    """Return the mean loss of the steps up to `step`."""
    last = int(np.searchsorted(series.steps.x("step"), step, side="right"))
    loss = series.steps.column("loss")[max(0, last - NEWEST_STEPS) : last]
    return float(np.mean(loss[np.isfinite(loss)])) if np.isfinite(loss).any() else None


def overfits_since(series: Series) -> Event | None:
    """Return the evaluation after which the model only learnt its training data by heart; None: it did not.

    What is told once stays told until the validation is nearly as good again: it goes up and down a little
    from one evaluation to the next, and the remark must not come and go with it.
    """
    evaluations = [event for event in series.evaluations.all if event["loss"] is not None]
    best, num_after, is_told = None, 0, False
    for event in evaluations:
        if best is None or event["loss"] < best["loss"]:
            best, num_after, is_told = event, 0, False
            continue
        num_after += 1
        rise, ratio = event["loss"] - best["loss"], event["loss"] / max(best["loss"], 1e-12)
        is_worse = (ratio >= CLEARLY_WORSE and _metric_is_worse(series, best, event)) or (
            ratio >= MUCH_WORSE and rise >= SMALL_RISE
        )
        is_told = (num_after >= WORSE_EVALUATIONS and is_worse) or (is_told and ratio >= HARDLY_WORSE)
    if best is None or not is_told:
        return None
    then, now = training_loss_at(series, best["step"]), training_loss_at(series, evaluations[-1]["step"])
    if then is None or now is None or now > CLEARLY_BETTER * then:
        return None
    return best


def _metric_is_worse(series: Series, best: Event, event: Event) -> bool:
    """Tell whether the main metric fell by more than chance explains on so many samples."""
    name = events.primary_metric(event["metrics"])
    before, after = best["metrics"].get(name), event["metrics"].get(name)
    if name is None or before is None or after is None:
        return False
    fall = before - after if events.PRIMARY_METRICS[name] else after - before
    return bool(fall > metric_noise(series, before))


def metric_noise(series: Series, value: float) -> float:
    """Return by how much a metric may differ by chance: of a share two standard errors, else a fiftieth."""
    num = series.plan.get("num_validation") or 0
    if 0 <= value <= 1 and num:
        return 2 * math.sqrt(max(value * (1 - value), 1 / num) / num)
    return abs(value) / 50
