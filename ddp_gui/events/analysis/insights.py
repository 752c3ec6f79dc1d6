"""Insights about a run, each with its measurements."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ddp_gui.events.analysis import learning
from ddp_gui.events.analysis.learning import short
from ddp_gui.events.series import Series
from ddp_gui.events.tables import GrowingTable, Numbers
from trainers.contract import events
from trainers.contract.config import Config
from trainers.contract.events import Event, State

# Thresholds in percent: load of other programs matters only if no cores are idle.
BUSY_PERCENT = 30.0
FULL_IDLE_PERCENT = 10.0
# Window of the moving median: five samples, one per second, so that opening a browser page does not count.
MEDIAN_SAMPLES = 5
MAX_SPANS = 50


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a run in which other programs used the processor; mean percent of all its cores."""

    from_step: int
    to_step: int
    from_s: float
    to_s: float
    others_percent: float

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


def contended_spans(load: GrowingTable) -> list[Span]:
    """Return the spans in which other programs used the processor, oldest first.

    Args:
        load: the columns `others` and `idle`, one row about every second.
    """
    columns = (load.column("others"), load.column("idle"), load.x("step"), load.x("time"))
    is_known = ~np.isnan(columns[0].astype(np.float64))
    other_percent, idle_percent, steps, seconds = (column.astype(np.float64)[is_known] for column in columns)
    if len(other_percent) < MEDIAN_SAMPLES:
        return []
    is_contended = (_moving_median(other_percent) >= BUSY_PERCENT) & (
        _moving_median(idle_percent) <= FULL_IDLE_PERCENT
    )
    edges = np.flatnonzero(np.diff(is_contended, prepend=False, append=False))
    spans = []
    for begin, end in edges.reshape(-1, 2).tolist():
        first = max(0, begin - 1)
        spans.append(
            Span(
                from_step=int(steps[first]),
                to_step=int(steps[end - 1]),
                from_s=float(seconds[first]),
                to_s=float(seconds[end - 1]),
                others_percent=float(np.mean(other_percent[begin:end])),
            )
        )
    return spans[-MAX_SPANS:]


def _moving_median(values: Numbers) -> Numbers:
    """Return the moving median; samples beyond the ends count as 0."""
    half_window = MEDIAN_SAMPLES // 2
    padded = np.pad(np.nan_to_num(values), half_window)
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_SAMPLES)
    medians: Numbers = np.median(windows, axis=1)
    return medians


@dataclass(frozen=True, kw_only=True)
class SlowRankSpan:
    """A rank that sleeps in each step from `after_step` to `until_step` (None: still sleeps)."""

    rank: int
    delay_ms: int
    after_step: int
    until_step: int | None = None


def slowed_spans(marks: Iterable[Event]) -> list[SlowRankSpan]:
    """Return the spans in which ranks were slowed down. A new start of the run ends all delays."""
    spans: list[SlowRankSpan] = []
    active: dict[int, int] = {}  # by rank, the index in `spans`
    for mark in marks:
        arguments = _slow_rank_arguments(mark)
        if arguments is not None:
            ended = [arguments[0]] if arguments[0] in active else []
        else:
            ended = list(active) if mark["kind"] == "state" and mark["state"] == "starting" else []
        for rank in ended:
            index = active.pop(rank)
            spans[index] = replace(spans[index], until_step=mark["step"])
        if arguments is not None and arguments[1]:
            active[arguments[0]] = len(spans)
            spans.append(SlowRankSpan(rank=arguments[0], delay_ms=arguments[1], after_step=mark["step"]))
    return [span for span in spans if span.until_step is None or span.until_step > span.after_step]


def _slow_rank_arguments(mark: Event) -> tuple[int, int] | None:
    """Return rank and delay of an accepted `slow_rank` command, or None for any other event."""
    if mark["kind"] != "command" or mark["name"] != "slow_rank" or not mark.get("accepted"):
        return None
    arguments = mark.get("arguments") or {}
    rank, delay_ms = arguments.get("rank"), arguments.get("delay_ms")
    return (rank, delay_ms) if isinstance(rank, int) and isinstance(delay_ms, int) else None


def slowed_text(spans: Sequence[SlowRankSpan], ended_at: int | None) -> str:
    """Return a sentence about the latest span in which a rank was slowed down.

    Args:
        ended_at: the last step of an ended run; None for a live run.
    """
    latest = spans[-1]
    until = ended_at if latest.until_step is None else latest.until_step
    first = latest.after_step + 1
    verb, period = "lets", f"since step {first:,}"
    if until is not None:
        verb, period = "let", f"from step {first:,} to {until:,}"
    more = f" (the last of {len(spans)} slowdowns)" if len(spans) > 1 else ""
    return (
        f"A user {verb} rank {latest.rank} sleep {latest.delay_ms} ms in each step {period}{more}: do not "
        "compare this run's times with those of other runs."
    )


WARM_UP_STEPS = 10  # the first steps allocate, compile and fill caches
LATEST_STEPS = 100
MIN_STEPS = 30
HIGH_DATA_SHARE = 0.25
SHORT_STEP_S = 0.004  # in shorter steps, fetching always takes a large share
MAX_UNCHANGED_RATIO = 0.95
MIN_RISE = 0.3
MIN_SLOWDOWN = 1.5
RANKS_EVENTS_TO_JUDGE = 5
FULL_MEMORY_SHARE = 0.95
IDLE_GPU_PERCENT = 40.0
SAMPLES_TO_JUDGE_GPU = 20
LOADER_WORKERS = 4
HIGH_CONTENDED_SHARE = 0.15  # as a share of the run's time


@dataclass(frozen=True, kw_only=True)
class Action:
    """A suggested fix, as a button: a change of the running job, or a new run with other values."""

    kind: Literal["set_learning_rate", "again"]
    label: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Insight:
    """One insight: the observation, its evidence, and an optional action."""

    code: str
    message: str
    evidence: str
    rank: int | None = None
    action: Action | None = None


Rule = Callable[[Series, Config], Insight | None]

_RULES: list[tuple[Rule, bool]] = []


def rule(*, while_it_runs: bool) -> Callable[[Rule], Rule]:
    """Register a rule; rules are in order of urgency.

    Args:
        while_it_runs: True if the rule applies only to live runs.
    """

    def decorate(function: Rule) -> Rule:
        _RULES.append((function, while_it_runs))
        return function

    return decorate


def find(series: Series, config: Config, state: State) -> list[Insight]:
    """Return the current insights on a run, the most urgent first."""
    if config.is_script:
        # Scripts: the page shows findings of the review next to the code, and the other rules concern fields
        # of the form.
        return [insights for insights in [_not_a_number(series, config)] if insights is not None]
    is_live = state in events.LIVE_STATES
    rules = [function for function, while_it_runs in _RULES if is_live or not while_it_runs]
    insights = [insight for function in rules if (insight := function(series, config)) is not None]
    return insights if is_live else [_adapt_to_ended_run(insight, config) for insight in insights]


def check_disk(run_path: Path) -> list[Insight]:
    """Test the disk of a live run; return an insight if it is not writable."""
    try:
        with tempfile.TemporaryFile(dir=run_path) as file:
            file.write(bytes(4096))
            file.flush()
        return []
    except OSError as error:
        if error.errno == errno.ENOSPC:
            what, advice = "The disk is full", "free some space"
        else:
            what = f"The folder of this run is no longer writable ({error.strerror})"
            advice = "make it writable again, or stop the run without saving"
    message = f"{what}: training continues, but nothing is saved. To fix this, {advice}."
    return [Insight(code="disk_takes_nothing", message=message, evidence="a check of the disk")]


def damage_insights(num_lines: int) -> list[Insight]:
    """Return the insight for unreadable lines of the events."""
    if num_lines == 0:
        return []
    subject = "event cannot" if num_lines == 1 else "events cannot"
    return [
        Insight(
            code="events_damaged",
            message=f"{num_lines:,} {subject} be read (damaged, altered or missing), so the page omits them.",
            evidence="events.jsonl",
        )
    ]


def _adapt_to_ended_run(insight: Insight, config: Config) -> Insight:
    """For an ended run, replace a change of the learning rate by a new run."""
    if insight.action is None or insight.action.kind == "again":
        return insight
    return replace(insight, action=_new_run_with_lower_rate(config))


@rule(while_it_runs=False)
def _not_a_number(series: Series, config: Config) -> Insight | None:
    loss = series.steps.column("loss")
    if len(loss) == 0 or np.isfinite(loss[-1]):
        return None
    finite = np.flatnonzero(np.isfinite(loss))
    first = int(finite[-1]) + 1 if len(finite) else 0
    step = int(series.steps.x("step")[first])
    evidence = f"the step event of step {step:,} and those after it"
    if len(finite) == 0:  # NaN before any update, so independent of the learning rate
        message = f"The loss is NaN from step {step:,} on: check the data for values that are not numbers."
        return Insight(code="not_a_number", message=message, evidence=evidence)
    return Insight(
        code="not_a_number",
        message=f"The loss has been NaN since step {step:,}: the weights are lost. The usual cause is a "
        "learning rate that is too high.",
        evidence=evidence,
        action=_new_run_with_lower_rate(config),
    )


@rule(while_it_runs=False)
def _loss_rises(series: Series, config: Config) -> Insight | None:
    means = learning.loss_in_parts(series)
    if means is None or means[-1] <= min(means) + MIN_RISE * abs(means[0]):
        return None
    loss, lowest = series.steps.column("loss"), means.index(min(means))
    before, now = f"{short(loss[0])} in the first step", f"{short(loss[-1])} in the latest"
    if lowest > 0:  # compare medians with medians, and a step with a step
        tenths = [f"{part[0]:,} to {part[-1]:,}" for part in np.array_split(series.steps.x("step"), 10)]
        before = f"{short(means[lowest])} over steps {tenths[lowest]}"
        now = f"{short(means[-1])} over steps {tenths[-1]} (medians)"
    return Insight(
        code="loss_rises",
        message=f"The loss rises: it was {before} and is {now}. The learning rate is too high.",
        evidence=_evidence_of_loss(series),
        action=_lower_rate(series, config),
    )


@rule(while_it_runs=False)
def _loss_does_not_fall(series: Series, config: Config) -> Insight | None:
    means = learning.loss_in_parts(series)
    if means is None or means[-1] <= MAX_UNCHANGED_RATIO * abs(means[0]) or means[0] == 0:
        return None
    if means[-1] > min(means) + MIN_RISE * abs(means[0]):
        return None  # the loss rises, which another rule reports
    compared = learning.compare(series)
    if compared is not None and compared.is_better:
        return None  # a good start, for example of a pretrained model
    first, last, num_steps = learning.loss_at_ends(series, 1)
    jump = learning.loss_jump(series)
    return Insight(
        code="loss_does_not_fall",
        message=f"The loss does not fall: it was {short(first)} and is {short(last)} "
        f"({learning.compared_steps_text(num_steps)})." + (" The learning rate is too high." if jump else ""),
        evidence=_evidence_of_loss(series),
        action=_lower_rate(series, config) if jump else None,
    )


@rule(while_it_runs=False)
def _memorises(series: Series, config: Config) -> Insight | None:
    """Report a validation loss that rises while the training loss falls."""
    best = learning.overfits_since(series)
    if best is None:
        return None
    latest = series.evaluations.last
    patience = config.early_stopping_patience
    loss_then, loss_now = (
        learning.training_loss_at(series, evaluation["step"]) for evaluation in (best, latest)
    )
    if loss_then is None or loss_now is None or latest["loss"] is None:
        return None
    return Insight(
        code="memorises",
        message=f"Validation rises ({short(best['loss'])} at step {best['step']:,}, "
        f"{short(latest['loss'])} now) while training falls ({short(loss_then)} to {short(loss_now)}, "
        f"medians of at most {learning.LATEST_STEPS} steps each): the model is overfitting.",
        evidence="the evaluations since the best one (events eval), and the steps between them (events step)",
        action=None if patience else _new_run_action("Start again and stop early", early_stopping_patience=3),
    )


@rule(while_it_runs=False)
def _slowed_on_purpose(series: Series, _config: Config) -> Insight | None:
    """Report that a user slowed down a rank, so the measured times are not representative."""
    spans = slowed_spans(series.marks)
    if not spans:
        return None
    is_over = series.state.get("state") in events.ENDED_STATES
    return Insight(
        code="slowed_on_purpose",
        message=slowed_text(spans, series.last_step.get("step", 0) if is_over else None),
        evidence="the command events slow_rank",
        rank=spans[-1].rank,
    )


@rule(while_it_runs=True)
def _slow_rank(series: Series, _config: Config) -> Insight | None:
    """Report a straggler: in successive events, one rank's own work takes clearly longer than the others'."""
    latest_events = list(series.newest_ranks)[-RANKS_EVENTS_TO_JUDGE:]
    slowest = [_slowest(event["ranks"]) for event in latest_events]
    if len(slowest) < RANKS_EVENTS_TO_JUDGE or None in slowest:
        return None
    ranks = {item[0] for item in slowest if item is not None}
    if len(ranks) > 1:
        return None
    if any(span.until_step is None for span in slowed_spans(series.marks)):
        return None  # slowed down on purpose
    rank, factor = ranks.pop(), median(item[1] for item in slowest if item is not None)
    return Insight(
        code="slow_rank",
        message=f"Rank {rank} is {factor:.1f} times slower than the others, which wait for it in every step.",
        evidence=f"the last {RANKS_EVENTS_TO_JUDGE} ranks events (step time without waiting)",
        rank=rank,
    )


def _slowest(ranks: list[dict[str, Any]]) -> tuple[int, float] | None:
    """Return the rank with the longest time for its own work, and the ratio to the other ranks' median."""
    work_times = [
        (rank["step_time_s"] - rank["wait_time_s"], rank["rank"])
        for rank in ranks
        if rank.get("step_time_s") is not None and rank.get("wait_time_s") is not None
    ]
    # If the waiting time of a rank is unknown, waiting would count as work.
    if len(work_times) < 2 or len(work_times) < len(ranks):
        return None
    longest, rank = max(work_times)
    factor = longest / max(median(seconds for seconds, other_rank in work_times if other_rank != rank), 1e-9)
    return (rank, factor) if factor >= MIN_SLOWDOWN else None


@rule(while_it_runs=False)
def _others_use_the_processor(series: Series, _config: Config) -> Insight | None:
    """Report that other programs use the CPU of the ranks, so the measured times are not representative."""
    if _is_on_gpus(series):
        return None
    spans = contended_spans(series.load)
    contended_s, run_s = sum(span.seconds for span in spans), series.active_s()
    if not spans or contended_s < HIGH_CONTENDED_SHARE * run_s:
        return None
    share = sum(span.others_percent * span.seconds for span in spans) / max(contended_s, 1e-9)
    return Insight(
        code="others_use_the_processor",
        message=f"For {contended_s:.0f} of {run_s:.0f} s other programs took {share:.0f}% of the processor: "
        "do not compare this run's times with those of other runs.",
        evidence="the load of the processor by other programs (grey in the throughput chart)",
    )


@rule(while_it_runs=True)
def _waits_for_data(series: Series, config: Config) -> Insight | None:
    table = series.steps
    first = max(WARM_UP_STEPS, table.length - LATEST_STEPS)
    step_times, data_times = table.column("step_time")[first:], table.column("data_time")[first:]
    if len(step_times) < MIN_STEPS or float(np.median(step_times)) < SHORT_STEP_S:
        return None
    share = float(np.nansum(data_times) / np.nansum(step_times))
    if share < HIGH_DATA_SHARE:
        return None
    subject = "GPUs" if _is_on_gpus(series) else "Ranks"
    workers = config.num_workers
    num_workers = LOADER_WORKERS if workers < LOADER_WORKERS else 2 * workers
    return Insight(
        code="waits_for_data",
        message=f"{subject} wait {share:.0%} of each step for data: try {num_workers} loader workers.",
        evidence=f"data_time_s and step_time_s of the last {len(step_times)} step events",
        action=_new_run_action(f"Start again with {num_workers} loader workers", num_workers=num_workers),
    )


@rule(while_it_runs=True)
def _memory_is_full(series: Series, config: Config) -> Insight | None:
    for device in series.latest.get("devices", {}).get("devices", []):
        used, total = device.get("memory_used_bytes"), device.get("memory_total_bytes")
        if device.get("kind") == "cuda" and used and total and used / total > FULL_MEMORY_SHARE:
            return Insight(
                code="memory_is_full",
                message=f"The memory of rank {device['rank']}'s GPU is {used / total:.0%} full: the run "
                "fails if it needs slightly more.",
                evidence="the latest devices event",
                rank=device["rank"],
                action=_new_run_action(
                    "Start again with half the batch", batch_size=max(1, config.batch_size // 2)
                ),
            )
    return None


@rule(while_it_runs=True)
def _gpu_is_idle(series: Series, config: Config) -> Insight | None:
    if not _is_on_gpus(series) or _waits_for_data(series, config) is not None:
        return None
    busy = [table.column("utilization")[-SAMPLES_TO_JUDGE_GPU:] for table in series.devices.values()]
    if not busy or min(map(len, busy)) < SAMPLES_TO_JUDGE_GPU or not np.isfinite(np.concatenate(busy)).any():
        return None
    mean = float(np.nanmean(np.concatenate(busy)))
    if mean >= IDLE_GPU_PERCENT:
        return None
    return Insight(
        code="gpu_is_idle",
        message=f"The GPUs are busy only {mean:.0f}% of the time: a larger batch uses them better.",
        evidence=f"the last {SAMPLES_TO_JUDGE_GPU} devices events",
        action=_new_run_action("Start again with four times the batch", batch_size=4 * config.batch_size),
    )


def _evidence_of_loss(series: Series) -> str:
    return f"the loss of all {series.steps.length:,} step events, in tenths"


def _lower_rate(series: Series, config: Config) -> Action:
    """Offer a lower rate now; if that was already tried, a new run, because the weights are too far off."""
    if any(mark["kind"] == "command" and mark.get("name") == "set_lr" for mark in series.marks):
        return _new_run_with_lower_rate(config)
    rate = float(f"{series.last_step['lr'] / 10:.2g}")
    return Action(
        kind="set_learning_rate",
        label=f"Lower the rate to {rate:g} now",
        values={"learning_rate": rate},
    )


def _new_run_with_lower_rate(config: Config) -> Action:
    rate = float(f"{config.learning_rate / 10:.2g}")
    return _new_run_action(f"Start again with a rate of {rate:g}", learning_rate=rate)


def _new_run_action(label: str, **values: Any) -> Action:
    return Action(kind="again", label=label, values=values)


def _is_on_gpus(series: Series) -> bool:
    devices = series.latest.get("devices", {}).get("devices", [])
    return bool(devices) and devices[0].get("kind") == "cuda"
