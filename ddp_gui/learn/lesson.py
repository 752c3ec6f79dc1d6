"""What a lesson is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_gui.learn.markdown import Tree

# What a chart of a lesson can be drawn over.
AXES = ("step", "samples", "time")
# What is measured of a run, and can be a row of a lesson's table.
NUMBERS = (
    "loss",
    "validation",
    "num_steps",
    "global_batch",
    "samples",
    "step_time",
    "throughput",
    "speed_up",
    "memory",
    "took",
)


@dataclass(frozen=True, kw_only=True)
class LessonRun:
    """One run: what it is called in the lesson, and its configuration; missing fields have their defaults."""

    name: str
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with one right answer, counted from 0.

    Attributes:
        because: what is said when it was answered.
    """

    question: Tree
    choices: tuple[Tree, ...]
    right: int
    because: Tree = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DrawnCurve:
    """A question whose answer is drawn: the course of a curve, between two values, over a range.

    Attributes:
        run: the run whose curve it is, counted from 0.
        until: where the axis ends; it begins at 0.
    """

    question: Tree
    curve: str
    axis: str
    run: int
    until: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What to look at: a place on a chart's axis, and words."""

    x: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A chart of all runs (`curve`), or a table of numbers of each (`numbers`).

    Attributes:
        caption: what it shows.
    """

    caption: Tree
    curve: str = ""
    axis: str = "step"
    smoothing: int = 0
    is_logarithmic: bool = False
    marks: tuple[Mark, ...] = ()
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A setting that the learner changes, and runs again.

    Attributes:
        run: whose configuration is changed, counted from 0.
        choices: what can be chosen: its words, and the fields that change.
    """

    run: int
    label: str
    choices: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Question(Choice):
    """A question at the end; with an attempt it can be answered only when that was run."""

    attempt: Attempt | None = None


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson.

    Attributes:
        name: as in its address.
        before, see, explain: its text: before the prediction, beside the pictures, and behind them.
    """

    name: str
    title: str
    minutes: int
    summary: str
    runs: tuple[LessonRun, ...]
    prediction: Choice | DrawnCurve
    pictures: tuple[Picture, ...]
    questions: tuple[Question, ...]
    before: Tree
    see: Tree
    explain: Tree
