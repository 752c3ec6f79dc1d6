"""One poll: a class predicts, the teacher closes it, a run shows what comes. Pure rules, no I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ddp_gui.learn.lesson import Choice, DrawnCurve, Lesson

State = Literal["open", "closed", "running", "revealed"]
STATES: tuple[State, ...] = ("open", "closed", "running", "revealed")
# What a teacher may ask of a poll, and in which state.
ACTIONS: Mapping[str, tuple[State, ...]] = {
    "close": ("open",),
    "reopen": ("closed",),
    "start": ("closed",),
    "end": STATES,
}
# A class, and then some; more are somebody's program.
MAX_ANSWERS = 500
# As many points as a curve is drawn with on the page (drawn_curve.js).
NUM_POINTS = 9
TOKEN = re.compile(r"[0-9a-f]{32}", re.ASCII)

Value = int | list[float]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one person predicted: a choice, counted from 0, or the values of a curve."""

    value: Value
    answered_unix_s: float


@dataclass(kw_only=True)
class Poll:
    """A poll on one lesson; its answers by the person's name, or by a random token of their browser."""

    poll_id: str
    lesson: str
    title: str
    opened_by: str
    opened_unix_s: float
    # The lesson's prediction as it was asked: a lesson's file may change meanwhile.
    question: dict[str, Any]
    num_runs: int
    state: State = "open"
    run_ids: list[str] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)

    def require(self, action: str) -> None:
        """Refuse what cannot be done to the poll now.

        Raises:
            ValueError: naming the action, and in which state it is allowed.
        """
        if action not in ACTIONS:
            raise ValueError(f"action is {action!r}, but allowed is: {', '.join(ACTIONS)}")
        if self.state not in ACTIONS[action]:
            raise ValueError(f"the poll is {self.state}: {action} is for one that is {ACTIONS[action][0]}")

    def close(self) -> None:
        """Take no more answers."""
        self.require("close")
        self.state = "closed"

    def reopen(self) -> None:
        """Take answers again: nothing has been shown yet."""
        self.require("reopen")
        self.state = "open"

    def begin_runs(self) -> None:
        """Begin the runs; from now on nobody can answer any more."""
        self.require("start")
        self.state = "running"

    def take_back_runs(self) -> None:
        """No run could be started: the poll is closed, as before."""
        assert self.state == "running" and not self.run_ids
        self.state = "closed"

    def note_run(self, run_id: str) -> None:
        """Note the next run; all participants watch this one."""
        assert self.state == "running" and len(self.run_ids) < self.num_runs
        self.run_ids.append(run_id)

    def reveal(self) -> None:
        """All runs have ended: what came is there."""
        assert self.state == "running"
        self.state = "revealed"

    def answer(self, key: str, value: Any, now_unix_s: float) -> None:
        """Take somebody's prediction, once; the same one again changes nothing, as after a lost connection.

        Raises:
            ValueError: when the poll is not open, they have answered, or it is no answer to the question.
        """
        checked = checked_value(self.question, value)
        known = self.answers.get(key)
        if known is not None and known.value == checked:
            return
        if self.state != "open":
            raise ValueError("the poll is closed: it takes no more predictions")
        if known is not None:
            raise ValueError("you have answered already: a prediction cannot be changed")
        if len(self.answers) >= MAX_ANSWERS:
            raise ValueError(f"the poll has {MAX_ANSWERS} answers, which is the most")
        self.answers[key] = Answer(value=checked, answered_unix_s=now_unix_s)

    def results(self) -> dict[str, Any]:
        """Return what was predicted, by nobody in particular: how often each choice, or all curves."""
        values = [answer.value for answer in self.answers.values()]
        if self.question["kind"] == "curve":
            # Sorted, so that their order says nothing about who answered when.
            return {"curves": sorted(value for value in values if isinstance(value, list))}
        return {"counts": [values.count(index) for index in range(len(self.question["choices"]))]}


def question_of(lesson: Lesson) -> dict[str, Any]:
    """Return a lesson's prediction as JSON values, with its kind."""
    kind = "curve" if isinstance(lesson.prediction, DrawnCurve) else "choice"
    return asdict(lesson.prediction) | {"kind": kind}


def choice_of(question: Mapping[str, Any]) -> Choice | None:
    """Return a poll's question; None where a curve is drawn."""
    if question["kind"] != "choice":
        return None
    return Choice(
        question=question["question"],
        choices=tuple(question["choices"]),
        right=question["right"],
        # A poll of an earlier version has no conditions.
        measured=tuple(question.get("measured", ())),
    )


def checked_value(question: Mapping[str, Any], value: Any) -> Value:
    """Return an answer to a question.

    Raises:
        ValueError: naming the value and what is allowed.
    """
    if question["kind"] == "choice":
        num_choices = len(question["choices"])
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_choices:
            shown = repr(value)[:40]
            raise ValueError(f"answer is {shown}, but allowed is: a whole number from 0 to {num_choices - 1}")
        return value
    low, high = question["low"], question["high"]
    is_list = isinstance(value, list) and len(value) == NUM_POINTS
    if not is_list or not all(_is_between(each, low, high) for each in value):
        raise ValueError(f"answer must be {NUM_POINTS} numbers from {low:g} to {high:g}")
    return [float(f"{each:.6g}") for each in value]


def _is_between(value: Any, low: float, high: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high


def to_json(poll: Poll) -> dict[str, Any]:
    """Return a poll as its file has it."""
    return asdict(poll)


def of_json(raw: Any) -> Poll:
    """Return the poll of a file.

    Raises:
        ValueError: when it is none.
    """
    try:
        answers = {
            str(key): Answer(
                value=checked_value(raw["question"], about["value"]),
                answered_unix_s=float(about["answered_unix_s"]),
            )
            for key, about in raw["answers"].items()
        }
        if raw["state"] not in STATES:
            raise ValueError(f"state is {raw['state']!r}")
        return Poll(**{**raw, "answers": answers, "run_ids": [str(each) for each in raw["run_ids"]]})
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no poll ({error!r})") from error
