"""Quantities that a lesson's conditions compare, each defined once, and reasons to doubt a measured time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ddp_gui.events import messages
from ddp_gui.events.analysis import contention
from ddp_gui.events.analysis import pace as pace_of
from ddp_gui.events.analysis.contention import Span
from ddp_gui.events.analysis.pace import Pace
from ddp_gui.events.series import Series
from ddp_gui.events.tables import Numbers
from trainers.contract import events

# Of a run's time; with less, the median step is not affected.
MUCH_CONTENDED = 0.1
# Medians of fewer steps differ from run to run.
FEWEST_STEPS = 30
# One half of a run at another speed than the other half: the machine changed meanwhile.
MOST_DRIFT = 1.5
# A step divided into parts is the mean over so many samples at least.
FEWEST_SAMPLED = 4
# N ranks may be a little more than N times as fast: each half of the samples fits a cache better.
MOST_SPEED_UP = 1.1
END_SHARE = 0.1


class UnmeasuredError(Exception):
    """A run does not have the quantity; the text says which, and why."""


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """What was measured of one run of a lesson.

    Attributes:
        name: in the lesson.
        num_ranks: of its configuration.
        contended: when other programs took the processor.
    """

    name: str
    state: str
    num_ranks: int
    series: Series
    pace: Pace | None
    contended: tuple[Span, ...]

    @classmethod
    def of(cls, name: str, state: str, num_ranks: int, series: Series) -> RunNumbers:
        """Return the numbers of a run that has ended."""
        return cls(
            name=name,
            state=state,
            num_ranks=num_ranks,
            series=series,
            pace=pace_of.of_run(series, is_over=state not in events.LIVE_STATES),
            contended=tuple(contention.spans(series.load)),
        )


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that is measured of one or two runs.

    Attributes:
        words: its name for a learner.
        unit: how the page writes it: loss, exact, number, seconds, per_second, times, bytes, share, count or
            flag.
        read: returns it, or None where it was not measured.
        num_runs: the runs that it is of; with two, the second is the one compared with.
        has_rank: it is of one rank, whose number follows the run.
        is_timed: other programs on the processor change it.
    """

    words: str
    unit: str
    read: Callable[..., float | None]
    num_runs: int = 1
    has_rank: bool = False
    is_timed: bool = False

    @property
    def num_arguments(self) -> int:
        """The arguments in a condition."""
        return self.num_runs + self.has_rank


def doubts(run: RunNumbers) -> list[str]:
    """Return why the times of a run say little about the run, as sentences; only what was observed."""
    if run.pace is None or run.pace.num_steps < FEWEST_STEPS:
        num_steps = 0 if run.pace is None else run.pace.num_steps
        return [f"Only {num_steps} whole steps of “{run.name}” were measured."]
    found = []
    active_s = run.series.active_s()
    contended_s = sum(span.seconds for span in run.contended)
    if contended_s > MUCH_CONTENDED * active_s:
        share = min(1.0, contended_s / active_s)
        found.append(f"Other programs used the processor for {share:.0%} of the time of “{run.name}”.")
    before, after = _medians_of_halves(run.series)
    if max(before, after) > MOST_DRIFT * min(before, after):
        found.append(
            f"The steps of “{run.name}” took {1000 * before:.3g} ms in its first half "
            f"and {1000 * after:.3g} ms in its second half."
        )
    return found


def doubts_of_parts(run: RunNumbers) -> list[str]:
    """Return why the parts of a run's steps say little, as sentences."""
    num_sampled = sum(table.length for table in run.series.ranks.values())
    if num_sampled >= FEWEST_SAMPLED:
        return []
    return [f"Only {num_sampled} steps of “{run.name}” were sampled: one is sampled each second."]


def doubts_of_speed_up(run: RunNumbers, base: RunNumbers) -> list[str]:
    """Return why a speed-up cannot be one of more ranks, as sentences."""
    found, most = _speed_up(run, base), run.num_ranks / base.num_ranks
    if found is None or found <= MOST_SPEED_UP * most:
        return []
    return [
        f"“{run.name}” was {found:.3g} times as fast as “{base.name}”, with {most:.3g} times as many ranks."
    ]


def _medians_of_halves(series: Series) -> tuple[float, float]:
    times = series.steps.column("step_time")
    times = times[np.isfinite(times) & (times > 0)]
    half = len(times) // 2
    return float(np.median(times[:half])), float(np.median(times[half:]))


def _is_number(value: object) -> bool:
    """True for a number; a damaged file may hold anything."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _speed_up(run: RunNumbers, base: RunNumbers) -> float | None:
    return pace_of.speed_up(run.pace, base.pace)


def _losses(run: RunNumbers) -> Numbers:
    return run.series.steps.column("loss").astype(np.float64)


def _mean_loss(run: RunNumbers) -> float | None:
    return messages.mean_loss(run.series)


def _end_loss(run: RunNumbers) -> float | None:
    losses = _losses(run)
    return float(np.mean(losses[-max(1, round(END_SHARE * len(losses))) :])) if len(losses) else None


def _loss_jumps(run: RunNumbers) -> float | None:
    losses = _losses(run)
    return float(np.mean(np.abs(np.diff(losses)))) if len(losses) > 1 else None


def _loss_difference(run: RunNumbers, other: RunNumbers) -> float | None:
    mine, theirs = _losses(run), _losses(other)
    num_both = min(len(mine), len(theirs))
    return float(np.max(np.abs(mine[:num_both] - theirs[:num_both]))) if num_both else None


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
    held = [[rank.get(field) for field in fields] for rank in ranks]
    return max((sum(parts) for parts in held if all(map(_is_number, parts))), default=None)


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


def _of_plan(name: str) -> Callable[[RunNumbers], float | None]:
    return lambda run: run.series.plan.get(name)


def _of_pace(name: str) -> Callable[[RunNumbers], float | None]:
    return lambda run: None if run.pace is None else float(getattr(run.pace, name))


QUANTITIES: Mapping[str, Quantity] = {
    "loss": Quantity(
        words="training loss, last", unit="exact", read=lambda run: run.series.last_step.get("loss")
    ),
    "end_loss": Quantity(words="training loss, mean of the last tenth", unit="loss", read=_end_loss),
    "mean_loss": Quantity(words="training loss, mean", unit="exact", read=_mean_loss),
    "loss_jumps": Quantity(words="change of the loss from step to step, mean", unit="loss", read=_loss_jumps),
    "loss_difference": Quantity(
        words="largest difference of the losses", unit="number", read=_loss_difference, num_runs=2
    ),
    "validation": Quantity(words="validation", unit="share", read=_validation),
    "num_steps": Quantity(
        words="optimizer steps", unit="count", read=lambda run: run.series.last_step.get("step")
    ),
    "global_batch": Quantity(words="global batch", unit="count", read=_of_plan("global_batch")),
    "samples": Quantity(words="samples trained with", unit="count", read=_samples),
    "late_learning_rate": Quantity(
        words="highest learning rate in the last three eighths", unit="number", read=_late_learning_rate
    ),
    "step_time": Quantity(
        words="time of a step, median", unit="seconds", read=_of_pace("step_time_s"), is_timed=True
    ),
    "throughput": Quantity(
        words="samples per second", unit="per_second", read=_of_pace("samples_per_s"), is_timed=True
    ),
    "speed_up": Quantity(words="speed-up", unit="times", read=_speed_up, num_runs=2, is_timed=True),
    "wait": Quantity(
        words="wait for the others in a step, mean", unit="seconds", read=_wait, has_rank=True, is_timed=True
    ),
    "held_bytes": Quantity(words="most that a rank holds", unit="bytes", read=_held_bytes),
    "weight_distance": Quantity(
        words="distance between the ranks’ weights", unit="number", read=_weight_distance
    ),
    "first_weight_distance": Quantity(
        words="distance where they first differed", unit="number", read=_first_weight_distance
    ),
    "num_recorded": Quantity(words="recorded steps", unit="count", read=_num_recorded),
    "failed": Quantity(words="failed", unit="flag", read=lambda run: float(run.state == "failed")),
}
