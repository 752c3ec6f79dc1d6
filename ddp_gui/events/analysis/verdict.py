"""Whether a run learns, and why one can say so: a line while it runs, a verdict when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ddp_gui.events.analysis import insights, learning
from ddp_gui.events.analysis.insights import Insight
from ddp_gui.events.analysis.wording import short
from ddp_gui.events.series import Series
from trainers.contract import events
from trainers.contract.events import State

Code = Literal[
    "too_early", "too_short", "learning", "learnt", "still_improving", "memorised", "did_not_learn"
]

TELLING_STEPS = 100
NEARLY_PERFECT = 0.995
STILL_FALLING = 0.97
ABOVE_CHANCE = 1.5
FEWEST_CLASSES = 3
NOT_LEARNING = ("not_a_number", "loss_rises", "loss_does_not_fall")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is said, in a few words and then why."""

    code: Code
    title: str
    reason: str


def judge(series: Series, state: State, found: Sequence[Insight]) -> Verdict | None:
    """Return what can be said of a run's learning; None of one that failed or has not begun.

    Args:
        found: what stands out in the run.
    """
    is_live = state in events.LIVE_STATES
    if series.steps.length == 0 or not (is_live or state in ("finished", "stopped")):
        return None
    bad = next((insight for insight in found if insight.code in NOT_LEARNING), None)
    if bad is not None:
        title = "Not learning." if is_live else "Did not learn: start again with a lower rate."
        return Verdict(code="did_not_learn", title=title, reason=_numbers(series))
    return _while_it_runs(series) if is_live else _at_the_end(series)


def _while_it_runs(series: Series) -> Verdict:
    means = _means(series)
    if series.steps.length < TELLING_STEPS or means is None:
        reason = f"{_steps(series.steps.length)} so far; the loss is judged from step {TELLING_STEPS:,} on."
        return Verdict(code="too_early", title="Too early to say whether it learns.", reason=reason)
    best = learning.overfits_since(series)
    if best is not None:
        return _memorised(series, best, "It only memorises now.")
    first, last = means[0], means[-1]
    if last < insights.HARDLY_FALLEN * abs(first):
        return Verdict(code="learning", title="It is learning.", reason=_fall(series))
    return Verdict(code="too_early", title="Too early to say whether it learns.", reason=_numbers(series))


def _at_the_end(series: Series) -> Verdict:
    means = _means(series)
    if series.steps.length < learning.FEWEST_STEPS_OF_A_RUN or means is None:
        reason = f"{_steps(series.steps.length)} are too few to tell."
        return Verdict(code="too_short", title="Too short to judge.", reason=reason)
    best = learning.overfits_since(series)
    if best is not None:
        return _memorised(series, best, f"Memorised from epoch {best['epoch'] + 2} on.")
    chance = _no_better_than_chance(series)
    if chance is not None and _falls_to_the_end(series, means):
        reason = f"{chance} But the loss was falling to the end."
        return Verdict(code="still_improving", title="Still improving: train longer.", reason=reason)
    if chance is not None:
        return Verdict(
            code="did_not_learn", title="Did not learn: start again with a lower rate.", reason=chance
        )
    reason = _fall(series)
    if _still_improves(series, means):
        return Verdict(code="still_improving", title="Still improving: train longer.", reason=reason)
    return Verdict(code="learnt", title="Learnt.", reason=reason)


def _means(series: Series) -> list[float] | None:
    """Return the loss of the first step and the mean of each tenth of the run, however short it is."""
    loss = series.steps.column("loss")
    parts = [part[np.isfinite(part)] for part in np.array_split(loss, min(10, len(loss)))]
    if any(len(part) == 0 for part in parts):
        return None
    return [float(parts[0][0]), *(float(np.mean(part)) for part in parts[1:])]


def _memorised(series: Series, best: events.Event, title: str) -> Verdict:
    newest = series.evaluations.last
    reason = (
        f"Validation loss was lowest at step {best['step']:,} ({short(best['loss'])}) and is "
        f"{short(newest['loss'])} now, while the training loss fell on."
    )
    return Verdict(code="memorised", title=title, reason=reason)


def _no_better_than_chance(series: Series) -> str | None:
    """Say so where a classification is right hardly more often than by guessing."""
    names = series.plan.get("class_names") or ()
    accuracy = series.evaluations.last.get("metrics", {}).get("accuracy")
    # Of two classes half is right by guessing, and three quarters may be all that can be had.
    if accuracy is None or len(names) < FEWEST_CLASSES or accuracy > ABOVE_CHANCE / len(names):
        return None
    guessed = 1 / len(names)
    return f"Validation accuracy is {accuracy:.1%}; guessing one of {len(names)} classes gives {guessed:.1%}."


def _still_improves(series: Series, means: Sequence[float]) -> bool:
    """Tell whether the newest evaluation is clearly the best; of a single one, whether the loss falls."""
    evaluations = [event for event in series.evaluations.all if event["loss"] is not None]
    name = events.primary_metric(evaluations[-1]["metrics"]) if evaluations else None
    value = evaluations[-1]["metrics"].get(name) if name else None
    if name is not None and events.PRIMARY_METRICS[name] and value is not None and value >= NEARLY_PERFECT:
        return False
    if len(evaluations) < 2:
        return means[-1] < STILL_FALLING * means[-2]
    *before, newest = (float(event["loss"]) for event in evaluations)
    return newest < STILL_FALLING * min(before)


def _falls_to_the_end(series: Series, means: Sequence[float]) -> bool:
    """Tell whether the validation loss ends lowest: clearly below half-way, and below the first loss."""
    losses = [float(event["loss"]) for event in series.evaluations.all if event["loss"] is not None]
    if len(losses) < 2:
        return False
    newest, half_way = losses[-1], losses[len(losses) // 2 - 1]
    return newest == min(losses) and newest < STILL_FALLING * half_way and newest < means[0]


def _fall(series: Series) -> str:
    """Return how the training loss changed, over equally many steps, and the best evaluation."""
    first, last, num_steps = learning.loss_at_ends(series, -1)
    change = f"fell from {short(first)} to" if last < first else f"was {short(first)} and is"
    words = f"The training loss {change} {short(last)} ({learning.ends_in_words(num_steps)})"
    best = series.evaluations.best
    if best is None:
        return f"{words}."
    return f"{words}; {_metric(best['name'], best['value'])} at best (step {best['step']:,})."


def _numbers(series: Series) -> str:
    """Say where the loss began and where it is, with what the newest evaluation says."""
    loss = series.steps.column("loss")
    newest = short(loss[-1]) if np.isfinite(loss[-1]) else "NaN"
    words = f"The training loss was {short(loss[0])} in the first step and is {newest} in the newest"
    metrics = series.evaluations.last.get("metrics", {})
    name = events.primary_metric(metrics)
    if name is None or metrics[name] is None:
        return f"{words}."
    return f"{words}; {_metric(name, metrics[name])}."


def _metric(name: str, value: float) -> str:
    is_share = name == "accuracy"
    return f"validation {name.replace('_', ' ')} is {f'{value:.1%}' if is_share else short(value)}"


def _steps(number: int) -> str:
    return f"{number:,} step{'' if number == 1 else 's'}"
