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
    "loss_exact",
    "mean_loss_exact",
    "validation",
    "num_steps",
    "global_batch",
    "samples",
    "step_time",
    "throughput",
    "speed_up",
    "memory",
    "learning_rate",
    "took",
)
# What can be drawn as a curve; what evaluations measure is `metric:NAME`.
CURVES = ("loss", "throughput", "learning_rate", "grad_norm", "validation_loss")
METRIC = "metric:"
# What can be drawn as a bar for each rank.
BARS = ("memory", "wait")
# How a run is meant to end.
ENDS = ("finished", "failed")


@dataclass(frozen=True, kw_only=True)
class SentCommand:
    """A command that the lesson sends to a run: an endpoint, and its values behind the run's id.

    Attributes:
        at_step: as soon as the page sees the run at this step, or behind it.
    """

    at_step: int
    name: str
    endpoint: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class LessonRun:
    """One run: what it is called in the lesson, and its configuration; missing fields have their defaults.

    Attributes:
        expect: how it is meant to end; one that is to fail shows a hang or an error.
        commands: what the lesson does to it while it trains; also to the attempts that are made from it.
    """

    name: str
    config: Mapping[str, Any]
    expect: str = "finished"
    commands: tuple[SentCommand, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with one right answer, counted from 0.

    Attributes:
        right: the answer that the lesson explains.
        because: what is said when it was answered.
        measured: for each choice the condition under which the runs show it (`conditions`), empty where no
            measurement shows it; no conditions at all where the question is not about the runs.
    """

    question: Tree
    choices: tuple[Tree, ...]
    right: int
    because: Tree = field(default_factory=list)
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DrawnCurve:
    """A question whose answer is drawn: the course of a curve, between two values, over a range.

    Attributes:
        run: the run whose curve it is, counted from 0.
        until: where the axis ends; it begins at 0.
        smoothing: of the measured curve that it is compared with, in the unit of the axis.
    """

    question: Tree
    curve: str
    axis: str
    run: int
    until: float
    low: float
    high: float
    smoothing: float


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What to look at: a place on a chart's axis, and words."""

    x: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is shown of the runs: one of `curve`, `numbers`, `bars`, `waterfall` and `instrument`.

    Attributes:
        caption: what it shows.
        see: what to look at in it, once the runs have ended; may be empty.
        finding: what the runs show in it, said only where they meet the condition `when`; may be empty.
        curve: a chart of all runs.
        numbers: a table with a column for each run.
        bars: a bar for each rank of each run.
        waterfall: the run (counted from 0) whose speed-up over the first is divided into what it cost.
        instrument: a part of "Look closer" on a run's page, for each run or for `run` alone.
    """

    caption: Tree
    see: Tree = field(default_factory=list)
    finding: Tree = field(default_factory=list)
    when: str = ""
    curve: str = ""
    axis: str = "step"
    smoothing: float = 0
    is_logarithmic: bool = False
    marks: tuple[Mark, ...] = ()
    numbers: tuple[str, ...] = ()
    bars: str = ""
    waterfall: int | None = None
    instrument: str = ""
    run: int | None = None


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
        before, see, explain: its text: before the prediction, with the pictures (may be empty), behind them.
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
