"""Judges whether a run learns: a provisional line for a live run, a verdict at the end, each with the reason.

"Learned" means better on the validation split than the trivial predictor of the `plan` event, by more than
its standard error. Otherwise the verdict names the one cause that the run's own numbers show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ddp_gui.events.analysis import insights, learning
from ddp_gui.events.analysis.insights import Insight
from ddp_gui.events.analysis.learning import Comparison, short
from ddp_gui.events.series import Series
from trainers.contract import events
from trainers.contract.events import Event, State

Code = Literal[
    "too_early", "too_short", "learning", "learnt", "still_improving", "memorised", "did_not_learn"
]
Cause = Literal[
    "not_a_number",
    "rate_too_high",
    "too_few_steps",
    "data",
    "constant_input",
    "one_answer",
    "outlier",
    "overfitting",
]

MIN_STEPS = 100
NEARLY_PERFECT = 0.995
STILL_FALLING = 0.97
ABOVE_CHANCE = 1.5
MIN_CLASSES = 3
CLEARLY_BETTER = 2.0  # standard errors; exceeded by chance in one of 40 cases
ABOVE_TRIVIAL = 1.05
BELOW_TRIVIAL = 0.9
EXTREME = 100.0  # ratio of spreads (roots of the mean squared error) that a random split does not cause
LOWER_RATE = "Did not learn: the learning rate is too high. Start again with a lower rate."


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A verdict: a short title, then the numbers that support it.

    Attributes:
        cause: why the run did not learn, or not well; None if it learned, or the cause is unknown.
    """

    code: Code
    title: str
    reason: str
    cause: Cause | None = None


def judge(series: Series, state: State, current_insights: Sequence[Insight]) -> Verdict | None:
    """Return the verdict on a run's learning, or None if the run failed or has no step yet.

    Args:
        current_insights: the run's insights.
    """
    is_live = state in events.LIVE_STATES
    if series.steps.length == 0 or not (is_live or state in ("finished", "stopped")):
        return None
    codes = {insight.code for insight in current_insights}
    if "not_a_number" in codes:
        return _not_a_number(series, is_live=is_live)
    compared = learning.compare(series)
    if is_live:
        return _judge_live_run(series, codes, compared)
    if compared is None:
        return _judge_without_comparison(series, codes)
    return (
        _judge_learned(series, codes, compared)
        if compared.is_better
        else _judge_not_learned(series, codes, compared)
    )


def _not_a_number(series: Series, *, is_live: bool) -> Verdict:
    title_start = "Not learning" if is_live else "Did not learn"
    loss = series.steps.column("loss")
    finite = loss[np.isfinite(loss)]
    if len(finite) == 0:
        return Verdict(
            code="did_not_learn",
            cause="not_a_number",
            title=f"{title_start}: the loss is NaN from the first step on.",
            reason="No weight had been updated, so the learning rate is not the cause. Check the data for "
            "values that are missing, infinite or extremely large.",
        )
    jump = learning.loss_jump(series)
    latest = float(finite[-learning.STEPS_OF_A_JUMP :].max())
    if jump is None and latest <= learning.FAR_ABOVE * float(finite[0]):
        title = f"{title_start}: the loss became NaN."
        reason = (
            f"{_losses(series)} The loss had not risen before. The usual causes are a learning rate that is "
            "too high, and an infinite or extremely large value in the data."
        )
        return Verdict(code="did_not_learn", cause="not_a_number", title=title, reason=reason)
    reason = (
        f"{jump or f'The training loss rose from {short(finite[0])} to {short(latest)}.'} {_losses(series)}"
    )
    title = "Not learning: the learning rate is too high." if is_live else LOWER_RATE
    return Verdict(code="did_not_learn", cause="rate_too_high", title=title, reason=reason)


def _judge_live_run(series: Series, codes: set[str], compared: Comparison | None) -> Verdict:
    medians = learning.medians_of_tenths(series.steps.column("loss"))
    is_better = compared is not None and compared.is_better
    if "loss_rises" in codes and not is_better:
        title = "Not learning: the learning rate is too high."
        reason = _losses(series)
        return Verdict(code="did_not_learn", cause="rate_too_high", title=title, reason=reason)
    if "loss_does_not_fall" in codes:
        jump = learning.loss_jump(series)
        title = "Not learning: the learning rate is too high." if jump else "Not learning so far."
        reason = " ".join(filter(None, (jump, _losses(series), _comparison_text(compared))))
        cause: Cause | None = "rate_too_high" if jump else None
        return Verdict(code="did_not_learn", cause=cause, title=title, reason=reason)
    if series.steps.length < MIN_STEPS or medians is None:
        reason = f"{_steps(series.steps.length)} so far. The loss is judged from step {MIN_STEPS:,} on."
        return Verdict(code="too_early", title="Too early to say whether it learns.", reason=reason)
    best = learning.overfits_since(series)
    if best is not None:
        return _overfitted_verdict(series, best, "The model now only overfits.")
    if is_better or (compared is None and medians[-1] < insights.MAX_UNCHANGED_RATIO * abs(medians[0])):
        reason = " ".join(filter(None, (_change(series), _comparison_text(compared))))
        return Verdict(code="learning", title="It is learning.", reason=reason)
    reason = " ".join(filter(None, (_losses(series), _comparison_text(compared))))
    return Verdict(code="too_early", title="Too early to say whether it learns.", reason=reason)


def _judge_learned(series: Series, codes: set[str], compared: Comparison) -> Verdict:
    """Return the verdict on a run that ended better than the trivial predictor."""
    reason = f"{_comparison_text(compared)} {_change(series)}"
    best, jump = learning.overfits_since(series), learning.loss_jump(series)
    if best is not None and jump is not None:
        # If the loss jumps, the validation fluctuates, too, which is not overfitting.
        title = "Learned, but the loss jumped: the learning rate is too high."
        return Verdict(code="learnt", cause="rate_too_high", title=title, reason=f"{jump} {reason}")
    if best is not None:
        return _overfitted_verdict(
            series, best, f"Overfitted: validation got worse from step {best['step']:,} on."
        )
    if "loss_rises" in codes:
        title = "Learned, but the loss rises: the learning rate is too high."
        return Verdict(code="learnt", cause="rate_too_high", title=title, reason=reason)
    medians = learning.medians_of_tenths(series.steps.column("loss"))
    if medians is not None and (
        _still_improves(series, medians) or _is_near_the_start(series, medians, compared)
    ):
        return _still_improving_verdict(reason)
    if compared.num_errors <= CLEARLY_BETTER:
        title = "Learned little: barely better than the trivial predictor."
        return Verdict(code="learnt", title=title, reason=reason)
    return Verdict(code="learnt", title="Learned.", reason=reason)


def _judge_not_learned(series: Series, codes: set[str], compared: Comparison) -> Verdict:
    """Return the verdict, with the cause, on a run that ended no better than the trivial predictor."""

    def verdict(code: Code, cause: Cause, title: str, *reasons: str) -> Verdict:
        return Verdict(code=code, cause=cause, title=title, reason=" ".join((*reasons, comparison_text)))

    comparison_text, trivial, num_steps = _comparison_text(compared), compared.trivial, series.steps.length
    trivial_loss = learning.trivial_train_loss(trivial)
    if compared.has_one_answer:
        return verdict("did_not_learn", "one_answer", "Nothing to learn: the target is always the same.")
    if not trivial["inputs_differ"]:
        title = "Did not learn: all inputs are the same."
        reason = "The model cannot distinguish the samples."
        return verdict("did_not_learn", "constant_input", title, reason)
    spread = (max(trivial_loss, 1e-300) / max(trivial["loss"], 1e-300)) ** 0.5
    if trivial["predictor"] == "mean" and not 1 / EXTREME < spread < EXTREME:
        wide, narrow = ("training", "validation") if spread > 1 else ("validation", "training")
        reason = (
            f"The targets are spread {short(max(spread, 1 / spread))} times as widely in the {wide} split "
            f"as in the {narrow} split. A few extremely large targets dominate the loss."
        )
        title = "Did not learn: the targets contain extreme values."
        return verdict("did_not_learn", "outlier", title, reason)
    jump = learning.loss_jump(series)
    if jump is not None or "loss_rises" in codes:
        return verdict("did_not_learn", "rate_too_high", LOWER_RATE, jump or _losses(series))
    best = _best_comparison(series)
    if best is not None and best.num_errors > CLEARLY_BETTER:
        title = f"Overfitted: validation got worse from step {best.step:,} on."
        reason = (
            f"At step {best.step:,} validation {_value(trivial['metric'], best.value)}. {_change(series)}"
        )
        return verdict("memorised", "overfitting", title, reason)
    medians = learning.medians_of_tenths(series.steps.column("loss"))
    if medians is None or num_steps < learning.MIN_STEPS_OF_A_RUN:
        return verdict(
            "too_short", "too_few_steps", "Too short to judge.", f"The run had {_steps(num_steps)}."
        )
    if _falls_to_the_end(series, medians):
        title, reason = (
            "Too few steps: train longer.",
            f"The loss was still falling at the end. {_change(series)}",
        )
        return verdict("still_improving", "too_few_steps", title, reason)
    if num_steps < MIN_STEPS and medians[-1] > BELOW_TRIVIAL * trivial_loss:
        title, reason = (
            "Did not learn: too few steps.",
            f"The run had {_steps(num_steps)}. {_change(series)}",
        )
        return verdict("did_not_learn", "too_few_steps", title, reason)
    if medians[-1] > ABOVE_TRIVIAL * trivial_loss:
        title = "Did not learn: too few steps, or a rate that is too low."
        reason = f"The training loss is still above that of the trivial predictor ({short(trivial_loss)})."
        return verdict("did_not_learn", "too_few_steps", title, reason, _change(series))
    return verdict("did_not_learn", "data", *_explain_by_data(series, compared, medians[-1]))


def _explain_by_data(series: Series, compared: Comparison, last: float) -> tuple[str, str]:
    """Return title and reason if the inputs may not determine the target.

    Args:
        last: the training loss at the end.
    """
    trivial, latest = compared.trivial, series.evaluations.last["loss"]
    if trivial["metric"] == "accuracy" and latest is not None and latest < STILL_FALLING * trivial["loss"]:
        reason = (
            "The probabilities are better than the frequencies of the classes (validation loss "
            f"{short(latest)} against {short(trivial['loss'])}), but too few predictions are correct. One "
            "class may be too frequent, or the inputs may not determine the target."
        )
        return "No better than the most frequent class.", reason
    title = "Did not learn: the inputs may not determine the target."
    trivial_loss = learning.trivial_train_loss(trivial)
    if last < BELOW_TRIVIAL * trivial_loss:
        return title, f"The model only memorised the training data. {_change(series)}"
    reason = (
        f"The training loss ended at {short(last)}; the trivial predictor's loss is {short(trivial_loss)}."
    )
    return title, reason


def _judge_without_comparison(series: Series, codes: set[str]) -> Verdict:
    """Return the verdict on an ended run without a comparison with the trivial predictor."""
    medians = learning.medians_of_tenths(series.steps.column("loss"))
    if "loss_rises" in codes:
        return Verdict(code="did_not_learn", cause="rate_too_high", title=LOWER_RATE, reason=_losses(series))
    if "loss_does_not_fall" in codes:
        jump = learning.loss_jump(series)
        title = LOWER_RATE if jump else "Did not learn: the loss did not fall."
        reason = f"{jump} {_losses(series)}" if jump else _losses(series)
        cause: Cause | None = "rate_too_high" if jump else None
        return Verdict(code="did_not_learn", cause=cause, title=title, reason=reason)
    if series.steps.length < learning.MIN_STEPS_OF_A_RUN or medians is None:
        reason = f"{_steps(series.steps.length)} are too few to judge."
        return Verdict(code="too_short", title="Too short to judge.", reason=reason)
    best = learning.overfits_since(series)
    if best is not None:
        return _overfitted_verdict(
            series, best, f"Overfitted: validation got worse from step {best['step']:,} on."
        )
    chance = _no_better_than_chance(series)
    if chance is not None and _falls_to_the_end(series, medians):
        reason = f"{chance} But the loss was still falling at the end."
        return _still_improving_verdict(reason)
    if chance is not None:
        jump = learning.loss_jump(series)
        title, reason = ("Did not learn.", chance) if jump is None else (LOWER_RATE, f"{jump} {chance}")
        return Verdict(
            code="did_not_learn", cause=None if jump is None else "rate_too_high", title=title, reason=reason
        )
    reason = _change(series)
    if _still_improves(series, medians):
        return _still_improving_verdict(reason)
    # A script's insights do not include `loss_does_not_fall`.
    has_fallen = medians[0] - medians[-1] > (1 - insights.MAX_UNCHANGED_RATIO) * abs(medians[0])
    if series.evaluations.best is None and not has_fallen:
        if series.steps.length < MIN_STEPS:
            return Verdict(code="too_short", title="Too short to judge.", reason=_losses(series))
        title = "Did not learn: the loss did not fall."
        return Verdict(code="did_not_learn", title=title, reason=_losses(series))
    return Verdict(code="learnt", title="Learned.", reason=reason)


def _still_improving_verdict(reason: str) -> Verdict:
    title = "Still improving: train longer."
    return Verdict(code="still_improving", cause="too_few_steps", title=title, reason=reason)


def _overfitted_verdict(series: Series, best: Event, title: str) -> Verdict:
    latest = series.evaluations.last
    reason = (
        f"Validation loss was lowest at step {best['step']:,} ({short(best['loss'])}) and is "
        f"{short(latest['loss'])} now, while the training loss kept falling."
    )
    compared = learning.compare(series)
    reason = reason if compared is None else f"{reason} {_comparison_text(compared)}"
    return Verdict(code="memorised", cause="overfitting", title=title, reason=reason)


def _best_comparison(series: Series) -> Comparison | None:
    """Return the best comparison of all evaluations with the trivial predictor."""
    comparisons = [
        comparison for event in series.evaluations.all if (comparison := learning.compare(series, event))
    ]
    return max(comparisons, key=lambda comparison: comparison.num_errors, default=None)


def _no_better_than_chance(series: Series) -> str | None:
    """Return a sentence if a classification is hardly better than guessing, or None."""
    names = series.plan.get("class_names") or ()
    accuracy = series.evaluations.last.get("metrics", {}).get("accuracy")
    # With two classes, guessing gives one half, and three quarters may be the maximum.
    if accuracy is None or len(names) < MIN_CLASSES or accuracy > ABOVE_CHANCE / len(names):
        return None
    guessed = 1 / len(names)
    return f"Validation accuracy is {accuracy:.1%}; guessing one of {len(names)} classes gives {guessed:.1%}."


def _still_improves(series: Series, medians: Sequence[float]) -> bool:
    """Return True if the last evaluation is clearly the best; with only one, if the training loss falls."""
    evaluations = [event for event in series.evaluations.all if event["loss"] is not None]
    name = events.primary_metric(evaluations[-1]["metrics"]) if evaluations else None
    value = evaluations[-1]["metrics"].get(name) if name else None
    if name is not None and events.PRIMARY_METRICS[name] and value is not None and value >= NEARLY_PERFECT:
        return False
    if len(evaluations) < 2:
        return medians[-1] < STILL_FALLING * medians[-2]
    *earlier, latest = (float(event["loss"]) for event in evaluations)
    return latest < STILL_FALLING * min(earlier)


def _is_near_the_start(series: Series, medians: Sequence[float], compared: Comparison) -> bool:
    """Return True if a run of few steps ended near the trivial predictor's loss and was still falling."""
    near = BELOW_TRIVIAL * learning.trivial_train_loss(compared.trivial)
    return series.steps.length < MIN_STEPS and near < medians[-1] < medians[-2]


def _falls_to_the_end(series: Series, medians: Sequence[float]) -> bool:
    """Return True if the last validation loss is the lowest, clearly below half-way and below the first loss.

    The first loss is the training loss of the first step. If there is only one evaluation, its loss must be
    below it, and the training loss must still fall in the last tenth.
    """
    losses = [float(event["loss"]) for event in series.evaluations.all if event["loss"] is not None]
    if len(losses) < 2:
        is_known = bool(losses) and series.plan.get("trivial") is not None
        return is_known and losses[0] < medians[0] and medians[-1] < STILL_FALLING * medians[-2]
    latest, half_way = losses[-1], losses[len(losses) // 2 - 1]
    return latest == min(losses) and latest < STILL_FALLING * half_way and latest < medians[0]


def _change(series: Series) -> str:
    """Return a sentence about the change of the training loss, and the best evaluation."""
    first, last, num_steps = learning.loss_at_ends(series, -1)
    change = f"fell from {short(first)} to" if last < first else f"was {short(first)} and is"
    text = f"The training loss {change} {short(last)} ({learning.compared_steps_text(num_steps)})"
    best = series.evaluations.best
    if best is None or learning.compare(series) is not None:
        return f"{text}."  # the comparison text already includes the evaluation
    return f"{text}; validation {_value(best['name'], best['value'])} at best (step {best['step']:,})."


def _losses(series: Series) -> str:
    """Return a sentence with the first and the last loss, and the last evaluation."""
    loss = series.steps.column("loss")
    latest = short(loss[-1]) if np.isfinite(loss[-1]) else "NaN"
    first = short(loss[0]) if np.isfinite(loss[0]) else "NaN"
    text = f"The training loss was {first} in the first step and is {latest} in the latest"
    metrics = series.evaluations.last.get("metrics", {})
    name = events.primary_metric(metrics)
    if name is None or metrics[name] is None or series.plan.get("trivial") is not None:
        return f"{text}."
    return f"{text}; validation {_value(name, metrics[name])}."


def _comparison_text(compared: Comparison | None) -> str:
    """Return a sentence that compares the evaluation with the trivial predictor; empty if unknown."""
    if compared is None:
        return ""
    trivial = compared.trivial
    trivial_text = _format_metric(trivial["metric"], trivial["value"])
    error_text = _format_metric(trivial["metric"], trivial["standard_error"])
    answer = trivial["answer"]
    answer_text = short(answer) if isinstance(answer, float | int) else answer
    predictor = {
        "most_frequent_class": f"always predicting the most frequent class ({answer_text})",
        "mean": f"always predicting the mean ({answer_text})",
        "unigram": "predicting each token by its frequency",
    }.get(trivial["predictor"], "the trivial predictor")
    value = _value(trivial["metric"], compared.value)
    return f"Validation {value}; {predictor} gives {trivial_text} (standard error {error_text})."


def _value(metric: str, value: float) -> str:
    return f"{'RMSE' if metric == 'rmse' else metric.replace('_', ' ')} is {_format_metric(metric, value)}"


def _format_metric(metric: str, value: float) -> str:
    return f"{value:.1%}" if metric == "accuracy" else short(value)


def _steps(number: int) -> str:
    return f"{number:,} step{'' if number == 1 else 's'}"
