"""Who did which lesson, as a table for the teacher: predictions, answers, times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ddp_gui.learn.lesson import Choice, DrawnCurve, Lesson
from ddp_gui.learn.markdown import Tree
from ddp_gui.runs.exports.exports import csv_rows

COLUMNS = (
    "person",
    "lesson",
    "prediction",
    "prediction_is_right",
    "predicted_at",
    "started_at",
    "done_at",
    "num_answered",
    "num_right",
    "num_questions",
    "answers",
    "in_poll",
    "runs",
)


def as_csv(people: Iterable[tuple[str, Mapping[str, Any]]], lessons: Sequence[Lesson]) -> bytes:
    """Return a row for each person and lesson that they have predicted in; no cell acts as a formula."""
    by_name = {lesson.name: lesson for lesson in lessons}
    table: list[Sequence[Any]] = [COLUMNS]
    for person, kept in people:
        for name, about in sorted(kept.items()):
            if about["progress"]["isLocked"]:
                row = _row(about["progress"], about["times"], by_name.get(name))
                table.append((person, name, *row))
    return csv_rows(table)


def _row(progress: Mapping[str, Any], times: Mapping[str, float], lesson: Lesson | None) -> list[Any]:
    questions = lesson.questions if lesson is not None else ()
    answers = {int(number): index for number, index in progress["answers"].items()}
    right = [number for number, about in enumerate(questions) if answers.get(number) == about.right]
    said = [
        f"{number + 1}: {_choice(questions[number], index) if number < len(questions) else index + 1}"
        for number, index in sorted(answers.items())
    ]
    predicted, is_right = _prediction(progress["prediction"], lesson)
    return [
        predicted,
        is_right,
        *(_time(times.get(key)) for key in ("predicted_unix_s", "started_unix_s", "done_unix_s")),
        len(answers),
        len(right) if lesson is not None else None,
        len(questions) if lesson is not None else None,
        "; ".join(said),
        progress["poll"],
        " ".join(run_id for run_id in progress["runs"] if run_id),
    ]


def _prediction(value: Any, lesson: Lesson | None) -> tuple[str, str | None]:
    """Return a prediction in words, and whether it came true; a curve is neither right nor wrong."""
    if isinstance(value, list):
        return " ".join(f"{each:.4g}" for each in value), None
    if lesson is None or isinstance(lesson.prediction, DrawnCurve):
        return str(value), None
    return _choice(lesson.prediction, value), "yes" if value == lesson.prediction.right else "no"


def _choice(about: Choice, index: Any) -> str:
    return words(about.choices[index]) if 0 <= index < len(about.choices) else f"choice {index + 1}"


def words(tree: Tree) -> str:
    """Return the text alone of a paragraph's inside."""
    return "".join(part if isinstance(part, str) else _inside(part) for part in tree)


def _inside(part: Sequence[Any]) -> str:
    last = part[-1]
    return last if isinstance(last, str) else words(last)


def _time(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
