"""Lessons and their Markdown as the page shows them."""

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
    """Text that a lesson may not have.

    Attributes:
        line: where it is, from 1.
    """

    def __init__(self, words: str, line: int) -> None:
        super().__init__(words)
        self.line = line


def parse_blocks(text: str, is_term: Callable[[str], bool]) -> Tree:
    """Return the blocks of a text.

    Args:
        is_term: whether the glossary has a term.

    Raises:
        MarkdownError: naming what is not allowed, and its line.
    """
    return _Reader(is_term).blocks(SyntaxTreeNode(_parser().parse(text)).children)


def parse_inlines(text: str, is_term: Callable[[str], bool]) -> Tree:
    """Return the inlines of one paragraph.

    Raises:
        MarkdownError: where it is more than one, or has what is not allowed.
    """
    found = parse_blocks(text, is_term)
    if len(found) != 1 or found[0][0] != "p":
        raise MarkdownError(f"{text!r} must be one paragraph", 1)
    inside: Tree = found[0][1]
    return inside


def _parser() -> MarkdownIt:
    # What is refused is found first: HTML, and links that its own rules would leave as text.
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
                words = "a link is written wrongly: its address has no spaces (write _ in the name of a term)"
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
