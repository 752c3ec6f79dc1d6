"""Outcomes of a lesson's prediction and questions, measured from its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ddp_gui.learn import measures
from ddp_gui.learn.lesson import ChoiceQuestion, Lesson, Picture, Question
from ddp_gui.learn.measures import QUANTITIES, Measurement, RunNumbers, Runs, UnmeasuredError
from ddp_gui.plan import recipe
from ddp_gui.runs.runs import RunStore
from trainers.contract import events
from trainers.contract.config import ConfigError, Problem

Plan = Callable[[dict[str, Any]], object]
Configs = list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a lesson's runs are adapted to this machine.

    Attributes:
        obstacles: why a run cannot be started with the lesson's configuration, one sentence per run.
        way: the adaptation, as a sentence for the learner; empty if none is needed or possible.
        max_ranks: maximum number of ranks; None keeps the lesson's number.
        on_cpu: True to run on the CPU, which is possible if the lesson does not set the device.
    """

    obstacles: list[str] = field(default_factory=list)
    way: str = ""
    max_ranks: int | None = None
    on_cpu: bool = False

    def of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a lesson's configuration, adapted to this machine and with the fields' fixed defaults."""
        adapted = recipe.with_fixed_defaults(config)
        if self.on_cpu:
            adapted["device"] = "cpu"
        if self.max_ranks is not None and "nproc_per_node" in adapted:
            adapted["nproc_per_node"] = min(adapted["nproc_per_node"], self.max_ranks)
        return adapted


def fit(lesson: Lesson, plan: Plan) -> Fit:
    """Return how a lesson can be run on this machine.

    Args:
        plan: checks a configuration against this machine; raises a ConfigError.
    """
    configs = [run.config for run in lesson.runs]
    obstacles, problems = list[str](), list[Problem]()
    for run in lesson.runs:
        try:
            plan(Fit().of(run.config))
        except ConfigError as error:
            obstacles.append(f"{run.name}: {error}")
            problems += error.problems
    if not problems or any(problem.field not in ("nproc_per_node", "device") for problem in problems):
        return Fit(obstacles=obstacles)
    on_cpu = Fit(obstacles=obstacles, way="On this machine it runs on CPU ranks instead.", on_cpu=True)
    if any("device" not in config for config in configs) and _is_possible(on_cpu, configs, plan):
        return on_cpu
    max_ranks = min((problem.suggestion or 0 for problem in problems), default=0)
    ranks = "one rank" if max_ranks == 1 else f"{max_ranks} ranks"
    way = f"On this machine it runs on at most {ranks} instead, so its effect may be smaller."
    fewer = Fit(obstacles=obstacles, way=way, max_ranks=max_ranks)
    return fewer if max_ranks > 0 and _is_possible(fewer, configs, plan) else Fit(obstacles=obstacles)


def _is_possible(fitted: Fit, configs: Configs, plan: Plan) -> bool:
    try:
        for config in configs:
            plan(fitted.of(config))
    except ConfigError:
        return False
    return True


# explained: the measurement matches the lesson's explanation. otherwise: it matches another choice, or no
# choice. doubtful: other programs disturbed the timing. unmeasured: a run lacks a number. unchecked: the
# question has no condition.
Verdict = Literal["explained", "otherwise", "doubtful", "unmeasured", "unchecked"]
# Table rows whose values change when other programs use the processor.
_TIMED_NUMBERS = ("step_time", "throughput", "speed_up")


@dataclass(frozen=True, kw_only=True)
class MeasuredOutcome:
    """The measured outcome of a question or of a picture's finding.

    Attributes:
        happened: index (from 0) of the choice that the measurement shows; None if it shows none or is
            inconclusive.
        reasons: why the measurement is inconclusive, or the displayed times are unreliable, as sentences.
        numbers: the compared numbers: `words`, `run`, `against` (the baseline run, or None), `value`, `unit`.
    """

    verdict: Verdict
    happened: int | None = None
    reasons: tuple[str, ...] = ()
    numbers: tuple[Mapping[str, Any], ...] = ()


UNCHECKED = MeasuredOutcome(verdict="unchecked")


def numbers_of(store: RunStore, run_id: str, name: str) -> RunNumbers | None:
    """Return a run's measured numbers; None if it is live or the current user cannot see it."""
    try:
        view = store.view(run_id)
    except (OSError, ValueError):
        return None
    view.catch_up()
    with view.lock:
        state = view.status().state
        if state in events.LIVE_STATES:
            return None
        return RunNumbers.of(name, state, view.config.world_size, view.series)


def of_choice(question: ChoiceQuestion, runs: Runs) -> MeasuredOutcome:
    """Return the choice of a question that the runs show."""
    if not question.measured:
        return UNCHECKED
    result = _compare([question.measured[question.right]], question.measured, runs)
    if result.verdict != "otherwise":
        return MeasuredOutcome(
            **{**vars(result), "happened": question.right if result.verdict == "explained" else None}
        )
    other_choices = (index for index, text in enumerate(question.measured) if text and _holds(text, runs))
    return MeasuredOutcome(**{**vars(result), "happened": next(other_choices, None)})


def of_picture(picture: Picture, runs: Runs) -> MeasuredOutcome:
    """Return the outcome of a picture's finding; without one, whether its times were disturbed."""
    if picture.when:
        return _compare([picture.when], [picture.when], runs, displayed=_timed_quantities(picture, runs))
    reasons = _doubts(_timed_quantities(picture, runs), runs)
    if picture.waterfall is not None:
        measured_runs = [runs[number] for number in (0, picture.waterfall) if number in runs]
        reasons += tuple(doubt for run in measured_runs for doubt in measures.breakdown_doubts(run))
    return MeasuredOutcome(verdict="doubtful", reasons=reasons) if reasons else UNCHECKED


def of_lesson(lesson: Lesson, runs: Runs, attempts: Mapping[int, Runs]) -> dict[str, Any]:
    """Return the outcome of a lesson's prediction, pictures and questions as JSON values.

    Args:
        runs: the lesson's own runs by number, without deleted ones.
        attempts: the latest run of each choice, by question.
    """

    def of_question(number: int, question: Question) -> MeasuredOutcome:
        return of_choice(question, {**runs, **attempts.get(number, {})})

    prediction = (
        of_choice(lesson.prediction, runs) if isinstance(lesson.prediction, ChoiceQuestion) else UNCHECKED
    )
    return {
        "prediction": vars(prediction),
        "pictures": [vars(of_picture(picture, runs)) for picture in lesson.pictures],
        "questions": [vars(of_question(*item)) for item in enumerate(lesson.questions)],
    }


def _compare(
    conditions: Sequence[str], texts: Sequence[str], runs: Runs, displayed: Sequence[Measurement] = ()
) -> MeasuredOutcome:
    """Compare conditions with the measured runs.

    Args:
        conditions: conditions that all hold if the lesson's explanation applies.
        texts: all conditions whose numbers are returned.
        displayed: displayed times, which are not compared.
    """
    compared = dict.fromkeys(
        measurement for text in texts if text for measurement in measures.measurements(text)
    )
    try:
        numbers = tuple(_number(measurement, runs) for measurement in compared)
        is_met = all(measures.condition_holds(text, runs) for text in conditions)
    except UnmeasuredError as error:
        return MeasuredOutcome(verdict="unmeasured", reasons=(str(error),))
    reasons = _doubts(compared, runs)
    if reasons:
        return MeasuredOutcome(verdict="doubtful", reasons=reasons, numbers=numbers)
    verdict: Verdict = "explained" if is_met else "otherwise"
    return MeasuredOutcome(verdict=verdict, reasons=_doubts(displayed, runs), numbers=numbers)


def _holds(text: str, runs: Runs) -> bool:
    try:
        return measures.condition_holds(text, runs)
    except UnmeasuredError:
        return False


def _number(measurement: Measurement, runs: Runs) -> Mapping[str, Any]:
    quantity, measured = (
        QUANTITIES[measurement.quantity],
        [runs[name] for name in measurement.runs if name in runs],
    )
    value = measurement.value(runs)
    baseline = measured[1].name if len(measured) > 1 else None
    return {
        "words": quantity.label if measurement.rank is None else f"{quantity.label}, rank {measurement.rank}",
        "run": measured[0].name,
        "against": baseline,
        "value": value,
        "unit": quantity.unit,
    }


def _doubts(compared: Iterable[Measurement], runs: Runs) -> tuple[str, ...]:
    reasons: list[str] = []
    for measurement in compared:
        if QUANTITIES[measurement.quantity].is_timed and all(name in runs for name in measurement.runs):
            measured = [runs[name] for name in measurement.runs]
            reasons += [doubt for run in measured for doubt in measures.doubts(run)]
            reasons += measures.speed_up_doubts(*measured) if measurement.quantity == "speed_up" else []
    return tuple(dict.fromkeys(reasons))


def _timed_quantities(picture: Picture, runs: Runs) -> list[Measurement]:
    """Return the timed quantities that a picture shows."""
    if picture.waterfall is not None:
        return [Measurement(quantity="speed_up", runs=(picture.waterfall, 0))]
    quantities = [name for name in _TIMED_NUMBERS if name in picture.numbers]
    if picture.bars == "wait" or picture.curve == "throughput":
        quantities = ["step_time"]
    return [
        Measurement(quantity=name, runs=(number, 0) if name == "speed_up" else (number,))
        for name in quantities
        for number in runs
    ]
