"""Lesson data classes, and the Markdown subset in which lessons are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

Tree = list[Any]

TERM = "term:"
_ADDRESSES = ("https://", "http://")
_WRAPPERS = {"strong": "b", "em": "i"}


class MarkdownError(ValueError):
    """Markdown that lessons do not support.

    Attributes:
        line: line number, from 1.
    """

    def __init__(self, words: str, line: int) -> None:
        super().__init__(words)
        self.line = line


def parse_blocks(text: str, is_term: Callable[[str], bool]) -> Tree:
    """Parse Markdown text into blocks.

    Args:
        is_term: returns True if the glossary has the term.

    Raises:
        MarkdownError: naming the unsupported element and its line.
    """
    return _Reader(is_term).blocks(SyntaxTreeNode(_parser().parse(text)).children)


def parse_inlines(text: str, is_term: Callable[[str], bool]) -> Tree:
    """Parse a single paragraph into inline elements.

    Raises:
        MarkdownError: if it is more than one paragraph or contains unsupported elements.
    """
    found = parse_blocks(text, is_term)
    if len(found) != 1 or found[0][0] != "p":
        raise MarkdownError(f"{text!r} must be one paragraph", 1)
    inside: Tree = found[0][1]
    return inside


def _parser() -> MarkdownIt:
    # Parse HTML and links that markdown-it would otherwise leave as text, so that they can be refused.
    made = MarkdownIt("commonmark", {"html": True})
    made.validateLink = lambda url: True  # type: ignore[method-assign]  # noqa: ARG005
    return made


class _Reader:
    def __init__(self, is_term: Callable[[str], bool]) -> None:
        self._is_term = is_term
        self._line = 1

    def blocks(self, nodes: Sequence[SyntaxTreeNode]) -> Tree:
        return [self._block(node) for node in nodes]

    def _block(self, node: SyntaxTreeNode) -> Tree:
        if node.map is not None:
            self._line = node.map[0] + 1
        if node.type == "paragraph":
            return ["p", self._inside(node)]
        if node.type == "heading" and node.tag == "h3":
            return ["h3", self._inside(node)]
        if node.type in ("fence", "code_block"):
            return ["pre", node.content.rstrip("\n")]
        if node.type == "blockquote":
            return ["quote", self.blocks(node.children)]
        if node.type in ("bullet_list", "ordered_list"):
            items = [self.blocks(item.children) for item in node.children]
            return ["ul" if node.type == "bullet_list" else "ol", items]
        raise self._refused(node)

    def _inside(self, node: SyntaxTreeNode) -> Tree:
        return self._inlines([child for inline in node.children for child in inline.children])

    def _inlines(self, nodes: Sequence[SyntaxTreeNode]) -> Tree:
        return [made for node in nodes if (made := self._inline(node)) != ""]

    def _inline(self, node: SyntaxTreeNode) -> Any:
        if node.type == "text":
            if "](" in node.content:
                words = "a link is invalid: its address has no spaces (write _ in the name of a term)"
                raise MarkdownError(words, self._line)
            return node.content
        if node.type in ("softbreak", "hardbreak"):
            return " "
        if node.type == "code_inline":
            return ["code", node.content]
        if node.type in _WRAPPERS:
            return [_WRAPPERS[node.type], self._inlines(node.children)]
        if node.type == "link":
            return self._link(node)
        raise self._refused(node)

    def _link(self, node: SyntaxTreeNode) -> Tree:
        inside = self._inlines(node.children)
        address = str(node.attrs.get("href", ""))
        if address.startswith(TERM):
            name = address.removeprefix(TERM).replace("_", " ")
            if not self._is_term(name):
                raise MarkdownError(f"the glossary has no term {name!r}", self._line)
            return ["term", name, inside]
        if not address.startswith(_ADDRESSES):
            allowed = "an address with https:// or http://, or term: and a term of the glossary"
            raise MarkdownError(f"a link goes to {address!r}, but allowed is: {allowed}", self._line)
        return ["link", address, inside]

    def _refused(self, node: SyntaxTreeNode) -> MarkdownError:
        allowed = "paragraphs, headings with ###, lists, quotes, code, emphasis, and links"
        what = node.type.replace("_", " ")
        return MarkdownError(f"there is a part of the kind {what!r}, but allowed are: {allowed}", self._line)


# X axes of a lesson's charts.
AXES = ("step", "samples", "time")
# Measured numbers of a run that a lesson's table can show as rows.
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
# Curves of a lesson's charts; an evaluation metric is written `metric:NAME`.
CURVES = ("loss", "throughput", "learning_rate", "grad_norm", "validation_loss")
METRIC = "metric:"
# Quantities that can be drawn as one bar per rank.
BARS = ("memory", "wait")
# How a run is expected to end.
ENDS = ("finished", "failed")


@dataclass(frozen=True, kw_only=True)
class SentCommand:
    """A command that the lesson sends to a run: an endpoint and its arguments after the run id.

    Attributes:
        at_step: the command is sent once the page sees the run at or after this step.
    """

    at_step: int
    name: str
    endpoint: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class LessonRun:
    """A run of a lesson: its display name and configuration; missing fields get their defaults.

    Attributes:
        expect: expected final state; a run that is expected to fail demonstrates a hang or an error.
        commands: commands that the lesson sends while the run trains; also sent to attempts based on it.
    """

    name: str
    config: Mapping[str, Any]
    expect: str = "finished"
    commands: tuple[SentCommand, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A multiple-choice question with one correct answer.

    Attributes:
        right: index of the answer that the lesson explains, from 0.
        because: explanation shown after the question was answered.
        measured: one condition per choice under which the runs show that choice (see `measures`), empty if
            no measurement shows it; an empty tuple if the question is not about the runs.
    """

    question: Tree
    choices: tuple[Tree, ...]
    right: int
    because: Tree = field(default_factory=list)
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DrawnCurve:
    """A question answered by drawing a curve.

    Attributes:
        run: index of the run whose curve is predicted, from 0.
        until: end of the x axis, which begins at 0.
        low, high: limits of the y axis.
        smoothing: smoothing of the measured curve, in units of the x axis.
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
    """A labelled position on a chart's x axis."""

    x: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure of the runs. One of `curve`, `numbers`, `bars`, `waterfall` and `instrument` is set.

    Attributes:
        caption: text that describes the figure.
        see: text shown with the figure after the runs have ended; may be empty.
        finding: text shown only if the runs meet the condition `when`; may be empty.
        curve: a chart of all runs.
        numbers: a table with one column per run.
        bars: one bar per rank of each run.
        waterfall: index (from 0) of the run whose gap to an ideal speed-up is divided by causes.
        instrument: a panel of "Look closer" on a run's page, for each run or only for `run`.
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
    """A setting that the learner changes to run the lesson's run again.

    Attributes:
        run: index of the run whose configuration is changed, from 0.
        choices: configuration changes by the choice's label.
    """

    run: int
    label: str
    choices: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Question(Choice):
    """A question at the end of a lesson. If it has an attempt, that must be run before answering."""

    attempt: Attempt | None = None


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A lesson.

    Attributes:
        name: identifier in the URL.
        before, see, explain: text before the prediction, with the figures (may be empty), and after them.
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
