"""How far somebody is with a lesson: checked, and joined when two pages of the same person tell of it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ddp_gui.learn.head import MAX_CHOICES
from ddp_gui.learn.lesson_file import MAX_RUNS
from ddp_gui.learn.polls.poll import NUM_POINTS

MAX_ROUND = 1_000_000
MAX_QUESTIONS = 12
MAX_ATTEMPTS = 50
MAX_CHOICE_WORDS = 200
_RUN_ID = re.compile(r"[\w.-]{1,200}", re.ASCII)
_POLL_ID = re.compile(r"[a-z0-9]{1,20}", re.ASCII)

Progress = dict[str, Any]


def nothing() -> Progress:
    """Return what is known of somebody who has not begun."""
    return {
        "round": 0,
        "poll": None,
        "prediction": None,
        "isLocked": False,
        "isStarted": False,
        "runs": [],
        "attempts": {},
        "answers": {},
        "isDone": False,
    }


def checked(raw: Any) -> Progress:
    """Return somebody's progress; what is missing is as in the beginning.

    Raises:
        ValueError: naming the field.
    """
    if not isinstance(raw, dict):
        raise ValueError("progress must be an object")
    found = nothing()
    for name, value in raw.items():
        if name not in found:
            continue  # of a newer page: kept in its browser alone
        if not _CHECKS[name](value):
            raise ValueError(f"progress: {name} is {str(value)[:80]!r}, which it cannot be")
        found[name] = value
    if found["isLocked"] and found["prediction"] is None:
        raise ValueError("progress: isLocked needs a prediction")
    return found


def joined(known: Progress, told: Progress) -> Progress:
    """Return what holds after a page has told of its progress: the newer wins, and no started run is lost.

    A lesson that is begun anew is another round; what a page tells of an earlier one is out of date.
    """
    if told["round"] != known["round"]:
        return told if told["round"] > known["round"] else known
    found = dict(told)
    if known["isLocked"]:
        found |= {"isLocked": True, "prediction": known["prediction"], "poll": known["poll"]}
    pairs = list(itertools.zip_longest(told["runs"], known["runs"]))
    found["runs"] = [new if new is not None else old for new, old in pairs]
    # Who does not know of a run has not stopped the lesson either.
    knows_less = any(new is None and old is not None for new, old in pairs)
    found["isStarted"] = told["isStarted"] or (known["isStarted"] and knows_less)
    found["isDone"] = known["isDone"] or told["isDone"]
    found["attempts"] = {
        number: _joined_attempts(known["attempts"].get(number, []), told["attempts"].get(number, []))
        for number in {**known["attempts"], **told["attempts"]}
    }
    found["answers"] = {**told["answers"], **known["answers"]}
    return found


def _joined_attempts(known: list[Any], told: list[Any]) -> list[Any]:
    ids = {each["runId"] for each in told}
    return [*(each for each in known if each["runId"] not in ids), *told][-MAX_ATTEMPTS:]


def _is_choice(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_CHOICES


def _is_prediction(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == NUM_POINTS and all(map(_is_number, value))
    return value is None or _is_choice(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_run_id(value: Any) -> bool:
    return isinstance(value, str) and bool(_RUN_ID.fullmatch(value))


def _is_attempt(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"choice", "runId"}
        and isinstance(value["choice"], str)
        and len(value["choice"]) <= MAX_CHOICE_WORDS
        and _is_run_id(value["runId"])
    )


def _are_attempts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_ATTEMPTS and all(map(_is_attempt, value))


def _by_question(value: Any, is_right: Callable[[Any], bool]) -> bool:
    numbers = {str(number) for number in range(MAX_QUESTIONS)}
    return isinstance(value, dict) and value.keys() <= numbers and all(map(is_right, value.values()))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "round": lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ROUND,
    "poll": lambda value: value is None or (isinstance(value, str) and bool(_POLL_ID.fullmatch(value))),
    "prediction": _is_prediction,
    "isLocked": _is_flag,
    "isStarted": _is_flag,
    "runs": lambda value: (
        isinstance(value, list)
        and len(value) <= MAX_RUNS
        and all(each is None or _is_run_id(each) for each in value)
    ),
    "attempts": lambda value: _by_question(value, _are_attempts),
    "answers": lambda value: _by_question(value, _is_choice),
    "isDone": _is_flag,
}
