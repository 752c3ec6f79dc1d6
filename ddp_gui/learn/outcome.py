"""Outcomes of a lesson's prediction and questions, measured from its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ddp_gui.learn import measures
from ddp_gui.learn.lesson import Choice, Lesson, Picture, Question
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
        most_ranks: maximum number of ranks; None keeps the lesson's number.
        on_cpu: True to run on the CPU, which is possible if the lesson does not set the device.
    """

    obstacles: list[str] = field(default_factory=list)
    way: str = ""
    most_ranks: int | None = None
    on_cpu: bool = False

    def of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a lesson's configuration, adapted to this machine and with the fields' fixed defaults."""
        made = recipe.with_fixed_defaults(config)
        if self.on_cpu:
            made["device"] = "cpu"
        if self.most_ranks is not None and "nproc_per_node" in made:
            made["nproc_per_node"] = min(made["nproc_per_node"], self.most_ranks)
        return made


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
    most = min((problem.suggestion or 0 for problem in problems), default=0)
    ranks = "one rank" if most == 1 else f"{most} ranks"
    words = f"On this machine it runs on at most {ranks} instead, so its effect may be smaller."
    fewer = Fit(obstacles=obstacles, way=words, most_ranks=most)
    return fewer if most > 0 and _is_possible(fewer, configs, plan) else Fit(obstacles=obstacles)


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
class Outcome:
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


UNCHECKED = Outcome(verdict="unchecked")


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


def of_choice(about: Choice, runs: Runs) -> Outcome:
    """Return the choice of a question that the runs show."""
    if not about.measured:
        return UNCHECKED
    found = _compared([about.measured[about.right]], about.measured, runs)
    if found.verdict != "otherwise":
        return Outcome(**{**vars(found), "happened": about.right if found.verdict == "explained" else None})
    others = (index for index, text in enumerate(about.measured) if text and _holds(text, runs))
    return Outcome(**{**vars(found), "happened": next(others, None)})


def of_picture(about: Picture, runs: Runs) -> Outcome:
    """Return the outcome of a picture's finding; without one, whether its times were disturbed."""
    if about.when:
        return _compared([about.when], [about.when], runs, also=_timed_of(about, runs))
    reasons = _doubts(_timed_of(about, runs), runs)
    if about.waterfall is not None:
        divided = [runs[number] for number in (0, about.waterfall) if number in runs]
        reasons += tuple(words for run in divided for words in measures.doubts_of_parts(run))
    return Outcome(verdict="doubtful", reasons=reasons) if reasons else UNCHECKED


def of_lesson(lesson: Lesson, runs: Runs, attempts: Mapping[int, Runs]) -> dict[str, Any]:
    """Return the outcome of a lesson's prediction, pictures and questions as JSON values.

    Args:
        runs: the lesson's own runs by number, without deleted ones.
        attempts: the latest run of each choice, by question.
    """

    def of_question(number: int, question: Question) -> Outcome:
        return of_choice(question, {**runs, **attempts.get(number, {})})

    prediction = of_choice(lesson.prediction, runs) if isinstance(lesson.prediction, Choice) else UNCHECKED
    return {
        "prediction": vars(prediction),
        "pictures": [vars(of_picture(picture, runs)) for picture in lesson.pictures],
        "questions": [vars(of_question(*each)) for each in enumerate(lesson.questions)],
    }


def _compared(
    wanted: Sequence[str], texts: Sequence[str], runs: Runs, also: Sequence[Measurement] = ()
) -> Outcome:
    """Compare conditions with the measured runs.

    Args:
        wanted: conditions that all hold if the lesson's explanation applies.
        texts: all conditions whose numbers are returned.
        also: displayed times, which are not compared.
    """
    compared = dict.fromkeys(each for text in texts if text for each in measures.measurements(text))
    try:
        numbers = tuple(_number(each, runs) for each in compared)
        is_met = all(measures.condition_holds(text, runs) for text in wanted)
    except UnmeasuredError as error:
        return Outcome(verdict="unmeasured", reasons=(str(error),))
    reasons = _doubts(compared, runs)
    if reasons:
        return Outcome(verdict="doubtful", reasons=reasons, numbers=numbers)
    verdict: Verdict = "explained" if is_met else "otherwise"
    return Outcome(verdict=verdict, reasons=_doubts(also, runs), numbers=numbers)


def _holds(text: str, runs: Runs) -> bool:
    try:
        return measures.condition_holds(text, runs)
    except UnmeasuredError:
        return False


def _number(measurement: Measurement, runs: Runs) -> Mapping[str, Any]:
    about, of = QUANTITIES[measurement.quantity], [runs[name] for name in measurement.runs if name in runs]
    value = measurement.value(runs)
    against = of[1].name if len(of) > 1 else None
    return {
        "words": about.words if measurement.rank is None else f"{about.words}, rank {measurement.rank}",
        "run": of[0].name,
        "against": against,
        "value": value,
        "unit": about.unit,
    }


def _doubts(compared: Iterable[Measurement], runs: Runs) -> tuple[str, ...]:
    reasons: list[str] = []
    for each in compared:
        if QUANTITIES[each.quantity].is_timed and all(name in runs for name in each.runs):
            of = [runs[name] for name in each.runs]
            reasons += [words for run in of for words in measures.doubts(run)]
            reasons += measures.doubts_of_speed_up(*of) if each.quantity == "speed_up" else []
    return tuple(dict.fromkeys(reasons))


def _timed_of(about: Picture, runs: Runs) -> list[Measurement]:
    """Return the timed quantities that a picture shows."""
    if about.waterfall is not None:
        return [Measurement(quantity="speed_up", runs=(about.waterfall, 0))]
    shown = [name for name in _TIMED_NUMBERS if name in about.numbers]
    if about.bars == "wait" or about.curve == "throughput":
        shown = ["step_time"]
    return [
        Measurement(quantity=name, runs=(number, 0) if name == "speed_up" else (number,))
        for name in shown
        for number in runs
    ]
