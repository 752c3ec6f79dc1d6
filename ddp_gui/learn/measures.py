"""Quantities measured from a lesson's runs, and the conditions that compare them."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ddp_gui.events import run_view
from ddp_gui.events.analysis import insights, pace
from ddp_gui.events.analysis.insights import Span
from ddp_gui.events.analysis.pace import Pace
from ddp_gui.events.series import Series
from ddp_gui.events.tables import Numbers
from trainers.contract import events

# Share of a run's time below which contention does not change the median step time.
MAX_CONTENDED_SHARE = 0.1
# Minimum number of steps for a reproducible median.
MIN_STEPS = 30
# Ratio between the median step times of a run's halves above which the machine's speed has changed.
MAX_DRIFT = 1.5
# Minimum number of sampled steps behind a mean step breakdown.
MIN_SAMPLED_STEPS = 4
# Tolerance for speed-ups: N ranks can be slightly more than N times as fast, because a smaller share of the
# samples fits the cache better.
MAX_SPEED_UP_PER_RANK = 1.1
END_SHARE = 0.1


class UnmeasuredError(Exception):
    """A run lacks a quantity; the message names both and the reason."""


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """The measured numbers of one of a lesson's runs.

    Attributes:
        name: name in the lesson.
        num_ranks: number of configured ranks.
        contended: spans during which other programs used the processor.
    """

    name: str
    state: str
    num_ranks: int
    series: Series
    pace: Pace | None
    contended: tuple[Span, ...]

    @classmethod
    def of(cls, name: str, state: str, num_ranks: int, series: Series) -> RunNumbers:
        """Return the numbers of an ended run."""
        return cls(
            name=name,
            state=state,
            num_ranks=num_ranks,
            series=series,
            pace=pace.pace_of_run(series, is_over=state not in events.LIVE_STATES),
            contended=tuple(insights.contended_spans(series.load)),
        )


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number measured from one or two runs.

    Attributes:
        label: display name.
        unit: display format: loss, exact, number, seconds, per_second, times, bytes, share, count or flag.
        read: returns the value, or None if it was not measured.
        num_runs: number of runs; the second is the baseline.
        has_rank: True if the quantity belongs to a rank, whose number is the last argument.
        is_timed: True if other programs on the processor affect the value.
    """

    label: str
    unit: str
    read: Callable[..., float | None]
    num_runs: int = 1
    has_rank: bool = False
    is_timed: bool = False

    @property
    def num_arguments(self) -> int:
        """Number of arguments in a condition."""
        return self.num_runs + self.has_rank


def doubts(run: RunNumbers) -> list[str]:
    """Return the observed reasons why a run's times are unreliable, as sentences."""
    if run.pace is None or run.pace.num_steps < MIN_STEPS:
        num_steps = 0 if run.pace is None else run.pace.num_steps
        return [f"Only {num_steps} complete steps of “{run.name}” were measured."]
    reasons = []
    active_s = run.series.active_s()
    contended_s = sum(span.seconds for span in run.contended)
    if contended_s > MAX_CONTENDED_SHARE * active_s:
        share = min(1.0, contended_s / active_s)
        reasons.append(f"Other programs used the processor for {share:.0%} of the time of “{run.name}”.")
    before, after = _medians_of_halves(run.series)
    if max(before, after) > MAX_DRIFT * min(before, after):
        reasons.append(
            f"The steps of “{run.name}” took {1000 * before:.3g} ms in its first half "
            f"and {1000 * after:.3g} ms in its second half."
        )
    return reasons


def breakdown_doubts(run: RunNumbers) -> list[str]:
    """Return reasons why a run's step breakdown is unreliable, as sentences."""
    num_sampled = sum(table.length for table in run.series.ranks.values())
    if num_sampled >= MIN_SAMPLED_STEPS:
        return []
    return [f"Only {num_sampled} steps of “{run.name}” were sampled, because one step per second is sampled."]


def speed_up_doubts(run: RunNumbers, base: RunNumbers) -> list[str]:
    """Return a sentence if the number of ranks cannot explain such a large speed-up."""
    speed_up, rank_ratio = _speed_up(run, base), run.num_ranks / base.num_ranks
    if speed_up is None or speed_up <= MAX_SPEED_UP_PER_RANK * rank_ratio:
        return []
    return [
        (
            f"“{run.name}” was {speed_up:.3g} times as fast as “{base.name}” with "
            f"{rank_ratio:.3g} times as many ranks."
        )
    ]


def _medians_of_halves(series: Series) -> tuple[float, float]:
    times = series.steps.column("step_time")
    times = times[np.isfinite(times) & (times > 0)]
    half = len(times) // 2
    return float(np.median(times[:half])), float(np.median(times[half:]))


def _is_number(value: object) -> bool:
    """Return True for a number. A damaged file can contain any type."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _speed_up(run: RunNumbers, base: RunNumbers) -> float | None:
    return pace.speed_up(run.pace, base.pace)


def _losses(run: RunNumbers) -> Numbers:
    return run.series.steps.column("loss").astype(np.float64)


def _mean_loss(run: RunNumbers) -> float | None:
    return run_view.mean_loss(run.series)


def _end_loss(run: RunNumbers) -> float | None:
    losses = _losses(run)
    return float(np.mean(losses[-max(1, round(END_SHARE * len(losses))) :])) if len(losses) else None


def _loss_jumps(run: RunNumbers) -> float | None:
    losses = _losses(run)
    return float(np.mean(np.abs(np.diff(losses)))) if len(losses) > 1 else None


def _loss_difference(run: RunNumbers, other: RunNumbers) -> float | None:
    mine, theirs = _losses(run), _losses(other)
    length = min(len(mine), len(theirs))
    return float(np.max(np.abs(mine[:length] - theirs[:length]))) if length else None


def _late_learning_rate(run: RunNumbers) -> float | None:
    rates = run.series.steps.column("learning_rate")
    return float(np.max(rates[len(rates) * 5 // 8 :])) if len(rates) else None


def _validation(run: RunNumbers) -> float | None:
    best = run.series.evaluations.best
    return None if best is None else run.series.evaluations.last["metrics"].get(best["name"])


def _wait(run: RunNumbers, rank: int) -> float | None:
    table = run.series.ranks.get(rank)
    waits = np.empty(0) if table is None else table.column("wait")
    waits = waits[np.isfinite(waits)]
    return float(np.mean(waits)) if len(waits) else None


def _held_bytes(run: RunNumbers) -> float | None:
    fields = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    ranks = run.series.latest.get("ranks", {}).get("ranks", [])
    state_bytes = [[rank.get(field) for field in fields] for rank in ranks]
    return max((sum(parts) for parts in state_bytes if all(map(_is_number, parts))), default=None)


def _weight_distance(run: RunNumbers) -> float | None:
    newest = (run.series.fingerprints.shown() or {"newest": []})["newest"]
    if not newest:
        return None
    if len(set(newest[-1]["hashes"])) == 1:
        return 0.0
    return max(filter(_is_number, newest[-1]["distances"]), default=None)


def _first_weight_distance(run: RunNumbers) -> float | None:
    curve = (run.series.fingerprints.shown() or {}).get("curve")
    firsts = (
        [max(filter(_is_number, at), default=0.0) for at in zip(*curve["distances"], strict=True)]
        if curve
        else []
    )
    return next((distance for distance in firsts if distance > 0), None)


def _samples(run: RunNumbers) -> float | None:
    return float(run.series.samples_at(run.series.last_step.get("step", 0))[0])


def _num_recorded(run: RunNumbers) -> float:
    return float(sum(mark.get("num_steps", 0) for mark in run.series.marks if mark["kind"] == "recording"))


def _plan_value(name: str) -> Callable[[RunNumbers], float | None]:
    return lambda run: run.series.plan.get(name)


def _pace_value(name: str) -> Callable[[RunNumbers], float | None]:
    return lambda run: None if run.pace is None else float(getattr(run.pace, name))


QUANTITIES: Mapping[str, Quantity] = {
    "loss": Quantity(
        label="training loss, last", unit="exact", read=lambda run: run.series.last_step.get("loss")
    ),
    "end_loss": Quantity(label="training loss, mean of the last tenth", unit="loss", read=_end_loss),
    "mean_loss": Quantity(label="training loss, mean", unit="exact", read=_mean_loss),
    "loss_jumps": Quantity(label="change of the loss from step to step, mean", unit="loss", read=_loss_jumps),
    "loss_difference": Quantity(
        label="largest difference of the losses", unit="number", read=_loss_difference, num_runs=2
    ),
    "validation": Quantity(label="validation", unit="share", read=_validation),
    "num_steps": Quantity(
        label="optimizer steps", unit="count", read=lambda run: run.series.last_step.get("step")
    ),
    "global_batch": Quantity(label="global batch", unit="count", read=_plan_value("global_batch")),
    "samples": Quantity(label="samples trained on", unit="count", read=_samples),
    "late_learning_rate": Quantity(
        label="highest learning rate in the last three eighths", unit="number", read=_late_learning_rate
    ),
    "step_time": Quantity(
        label="time of a step, median", unit="seconds", read=_pace_value("step_time_s"), is_timed=True
    ),
    "throughput": Quantity(
        label="samples per second", unit="per_second", read=_pace_value("samples_per_s"), is_timed=True
    ),
    "speed_up": Quantity(label="speed-up", unit="times", read=_speed_up, num_runs=2, is_timed=True),
    "wait": Quantity(
        label="wait for the others in a step, mean", unit="seconds", read=_wait, has_rank=True, is_timed=True
    ),
    "held_bytes": Quantity(label="maximum held by a rank", unit="bytes", read=_held_bytes),
    "weight_distance": Quantity(
        label="distance between the ranks’ weights", unit="number", read=_weight_distance
    ),
    "first_weight_distance": Quantity(
        label="distance where they first differed", unit="number", read=_first_weight_distance
    ),
    "num_recorded": Quantity(label="recorded steps", unit="count", read=_num_recorded),
    "failed": Quantity(label="failed", unit="flag", read=lambda run: float(run.state == "failed")),
}


MAX_LENGTH = 400
# A run in a condition: its index in the lesson, or a choice's label for an attempt.
RunName = int | str
Runs = Mapping[RunName, RunNumbers]

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A quantity in a condition, with its runs and, for some quantities, a rank."""

    quantity: str
    runs: tuple[RunName, ...]
    rank: int | None = None

    def value(self, runs: Runs) -> float:
        """Return the measured value.

        Raises:
            UnmeasuredError: naming the run and the quantity.
        """
        missing = [name for name in self.runs if name not in runs]
        if missing:
            problem = f"“{missing[0]}” was not run" if isinstance(missing[0], str) else "a run is missing"
            raise UnmeasuredError(f"{problem}.")
        quantity, measured = QUANTITIES[self.quantity], [runs[name] for name in self.runs]
        value = quantity.read(*measured) if self.rank is None else quantity.read(*measured, self.rank)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UnmeasuredError(f"The {quantity.label} of “{measured[0].name}” was not measured.")
        return float(value)


def check_condition(text: str, num_runs: int, attempts: Collection[str] = ()) -> None:
    """Validate a condition.

    Raises:
        ValueError: naming the problem.
    """
    tree = _parse(text)
    if not isinstance(tree, ast.Compare | ast.BoolOp) and not _is_not(tree):
        raise ValueError(f"{text!r} compares nothing")
    _check(tree, is_condition=True)
    for measurement in _measurements(tree):
        for name in measurement.runs:
            if isinstance(name, str) and name not in attempts:
                allowed = ", ".join(attempts) or "none: only a question with an attempt has choices"
                raise ValueError(f"{name!r} is not a choice of the attempt; allowed: {allowed}")
            if isinstance(name, int) and not 0 <= name < num_runs:
                raise ValueError(f"run {name} does not exist; allowed: 0 to {num_runs - 1}")
    if not any(True for _ in _measurements(tree)):
        raise ValueError(f"{text!r} contains no quantity; the quantities are: {', '.join(QUANTITIES)}")


def measurements(text: str) -> list[Measurement]:
    """Return the distinct measurements in a valid condition."""
    return list(dict.fromkeys(_measurements(_parse(text))))


def condition_holds(text: str, runs: Runs) -> bool:
    """Return True if the runs meet a valid condition.

    Raises:
        UnmeasuredError: if a run lacks a quantity of the condition.
    """
    return bool(_value(_parse(text), runs))


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has more than {MAX_LENGTH} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not a condition") from error


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _check(node: ast.expr, *, is_condition: bool) -> None:
    """Raise an error for any syntax other than comparisons of numbers and quantities."""
    if is_condition and isinstance(node, ast.BoolOp):
        for part in node.values:
            _check(part, is_condition=True)
    elif is_condition and _is_not(node) and isinstance(node, ast.UnaryOp):
        _check(node.operand, is_condition=True)
    elif is_condition and isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        for part in (node.left, *node.comparators):
            _check(part, is_condition=False)
    elif not is_condition and isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        _check(node.left, is_condition=False)
        _check(node.right, is_condition=False)
    elif not is_condition and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, is_condition=False)
    elif not is_condition and isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return
    elif not is_condition and isinstance(node, ast.Call):
        _measurement(node)
    else:
        expected = "a comparison" if is_condition else "a number or a quantity"
        raise ValueError(f"{ast.unparse(node)!r} is not {expected}")


def _measurements(tree: ast.expr) -> Iterator[Measurement]:
    return (_measurement(node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _measurement(call: ast.Call) -> Measurement:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    quantity = QUANTITIES.get(name)
    if quantity is None:
        raise ValueError(
            f"{ast.unparse(call.func)!r} is not a quantity; the quantities are: {', '.join(QUANTITIES)}"
        )
    values = [argument.value if isinstance(argument, ast.Constant) else None for argument in call.args]
    *_, last = values or [None]
    runs = [value for value in values[: quantity.num_runs] if type(value) in (int, str)]
    has_rank = type(last) is int and last >= 0 if quantity.has_rank else True
    if (
        call.keywords
        or len(values) != quantity.num_arguments
        or len(runs) != quantity.num_runs
        or not has_rank
    ):
        expected = ["a run", "a run to compare with"][: quantity.num_runs] + ["a rank"] * quantity.has_rank
        raise ValueError(f"{ast.unparse(call)!r}: {name} has {', '.join(expected)}")
    rank = last if quantity.has_rank and isinstance(last, int) else None
    return Measurement(
        quantity=name, runs=tuple(run for run in runs if isinstance(run, int | str)), rank=rank
    )


def _value(node: ast.expr, runs: Runs) -> float:
    """Evaluate a valid node; a condition is 1.0 if it holds, else 0.0."""
    if isinstance(node, ast.BoolOp):
        combined = all if isinstance(node.op, ast.And) else any
        return float(combined([_value(part, runs) for part in node.values]))
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, runs)
        return float(not value) if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.Compare):
        sides = [_value(part, runs) for part in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
        return float(all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, runs), _value(node.right, runs)
        if isinstance(node.op, ast.Div) and right == 0:
            raise UnmeasuredError("A measured divisor is 0.")
        return _OPERATIONS[type(node.op)](left, right)
    if isinstance(node, ast.Call):
        return _measurement(node).value(runs)
    assert isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value)
