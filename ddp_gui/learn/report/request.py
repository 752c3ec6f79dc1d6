"""What somebody asks a report of: lessons with what they did there, and runs; checked and bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.contract.run_ids import is_run_id

MAX_NAME = 120
MAX_LESSONS = 60
MAX_RUNS = 120
MAX_RUNS_OF_A_LESSON = 40
MAX_WORDS = 200
# The points of a curve that is drawn, as in `assets/js/learn/drawn_curve.js`.
NUM_DRAWN_POINTS = 9

Prediction = int | tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class AttemptRun:
    """A run that was started at a question, counted from 0, and what was chosen for it."""

    question: int
    choice: str
    run_id: str


@dataclass(frozen=True, kw_only=True)
class LessonDone:
    """What somebody did in a lesson.

    Attributes:
        prediction: a choice, counted from 0, or the values of a drawn curve; None: it was not locked.
        runs: the ids of the lesson's runs; None where one was not started.
        answers: what was chosen, by question.
    """

    lesson: str
    prediction: Prediction
    runs: tuple[str | None, ...]
    attempts: tuple[AttemptRun, ...]
    answers: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Whose report, of which lessons, with which other runs."""

    name: str
    lessons: tuple[LessonDone, ...]
    runs: tuple[str, ...]


def parse(raw: Any) -> Request:
    """Return what is asked for.

    Raises:
        ValueError: naming what cannot be used, and what is allowed.
    """
    table = _table("the report", raw, ("name", "lessons", "runs"))
    name = table.get("name", "")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        raise ValueError(f"name is no text of at most {MAX_NAME} characters")
    lessons = tuple(map(_lesson, _list("lessons", table.get("lessons", []), MAX_LESSONS)))
    runs = tuple(
        dict.fromkeys(_run_id("runs", each) for each in _list("runs", table.get("runs", []), MAX_RUNS))
    )
    made = Request(name=" ".join(name.split()), lessons=lessons, runs=runs)
    num_runs = len(run_ids(made))
    if not lessons and not runs:
        raise ValueError("a report needs a lesson or a run")
    if num_runs > MAX_RUNS:
        raise ValueError(f"there are {num_runs} runs, but allowed are at most {MAX_RUNS}")
    if len({lesson.lesson for lesson in lessons}) < len(lessons):
        raise ValueError("lessons has one of them twice")
    return made


def run_ids(request: Request) -> list[str]:
    """Return the ids of all runs, those of the lessons first, each once."""
    found: list[str] = []
    for lesson in request.lessons:
        found += filter(None, lesson.runs)
        found += [attempt.run_id for attempt in lesson.attempts]
    return list(dict.fromkeys([*found, *request.runs]))


def _lesson(raw: Any) -> LessonDone:
    table = _table("lessons", raw, ("lesson", "prediction", "runs", "attempts", "answers"))
    lesson = table.get("lesson")
    if not isinstance(lesson, str) or not 0 < len(lesson) <= MAX_WORDS:
        raise ValueError("lesson is not the name of one")
    runs = _list("runs", table.get("runs", []), MAX_RUNS_OF_A_LESSON)
    answers = _list("answers", table.get("answers", []), MAX_RUNS_OF_A_LESSON)
    return LessonDone(
        lesson=lesson,
        prediction=_prediction(table.get("prediction")),
        runs=tuple(None if each is None else _run_id("runs", each) for each in runs),
        attempts=tuple(map(_attempt, _list("attempts", table.get("attempts", []), MAX_RUNS_OF_A_LESSON))),
        answers={number: _whole("answers", each) for number, each in enumerate(answers) if each is not None},
    )


def _prediction(raw: Any) -> Prediction:
    if raw is None:
        return None
    if not isinstance(raw, list):
        return _whole("prediction", raw)
    is_curve = len(raw) == NUM_DRAWN_POINTS and all(
        isinstance(each, int | float) and not isinstance(each, bool) and _is_finite(each) for each in raw
    )
    if not is_curve:
        raise ValueError(f"prediction is neither a choice nor a list of {NUM_DRAWN_POINTS} numbers")
    return tuple(map(float, raw))


def _is_finite(value: float) -> bool:
    return abs(value) < 1e300 and math.isfinite(value)  # also a whole number of 400 digits


def _attempt(raw: Any) -> AttemptRun:
    table = _table("attempts", raw, ("question", "choice", "run_id"))
    choice = table.get("choice")
    if not isinstance(choice, str) or len(choice) > MAX_WORDS:
        raise ValueError(f"choice is no text of at most {MAX_WORDS} characters")
    run_id = _run_id("run_id", table.get("run_id"))
    return AttemptRun(question=_whole("question", table.get("question")), choice=choice, run_id=run_id)


def _whole(field: str, raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < MAX_WORDS:
        raise ValueError(f"{field} holds what is no whole number from 0 to {MAX_WORDS - 1}")
    return raw


def _run_id(field: str, raw: Any) -> str:
    if not is_run_id(raw):
        raise ValueError(f"{field} holds what is no run_id")
    return raw


def _list(field: str, raw: Any, most: int) -> Sequence[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise ValueError(f"{field} is no list of at most {most}")
    return raw


def _table(field: str, raw: Any, allowed: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(raw, dict) or not set(raw) <= set(allowed):
        raise ValueError(f"{field} is no object of {', '.join(allowed)}")
    return raw
