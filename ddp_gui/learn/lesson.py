"""Lesson data classes, and the Markdown subset in which lessons are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from ddp_gui.events.tables import span_of
from ddp_gui.http import shell
from trainers.contract.commands import COMMANDS
from trainers.files import typed
from trainers.files.typed import Limit, Parse, RefusedError

Tree = list[Any]

TERM = "term:"
_ADDRESSES = ("https://", "http://")
_WRAPPERS = {"strong": "b", "em": "i"}


class MarkdownError(ValueError):
    """Markdown that lessons do not support.

    Attributes:
        line: line number, from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def parse_blocks(text: str) -> Tree:
    """Parse Markdown text into blocks.

    Raises:
        MarkdownError: naming the unsupported element and its line.
    """
    return _Reader().blocks(SyntaxTreeNode(_parser().parse(text)).children)


def parse_inlines(text: str) -> Tree:
    """Parse a single paragraph into inline elements.

    Raises:
        MarkdownError: if it is more than one paragraph or contains unsupported elements.
    """
    blocks = parse_blocks(text)
    if len(blocks) != 1 or blocks[0][0] != "p":
        raise MarkdownError(f"{text!r} must be one paragraph", 1)
    content: Tree = blocks[0][1]
    return content


def _parser() -> MarkdownIt:
    # Make markdown-it parse HTML and all links, which it would otherwise leave as text, so that the reader
    # can refuse them.
    parser = MarkdownIt("commonmark", {"html": True})
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # noqa: ARG005
    return parser


class _Reader:
    def __init__(self) -> None:
        self._line = 1

    def blocks(self, nodes: Sequence[SyntaxTreeNode]) -> Tree:
        return [self._block(node) for node in nodes]

    def _block(self, node: SyntaxTreeNode) -> Tree:
        if node.map is not None:
            self._line = node.map[0] + 1
        if node.type == "paragraph":
            return ["p", self._content(node)]
        if node.type == "heading" and node.tag == "h3":
            return ["h3", self._content(node)]
        if node.type in ("fence", "code_block"):
            return ["pre", node.content.rstrip("\n")]
        if node.type == "blockquote":
            return ["quote", self.blocks(node.children)]
        if node.type in ("bullet_list", "ordered_list"):
            items = [self.blocks(item.children) for item in node.children]
            return ["ul" if node.type == "bullet_list" else "ol", items]
        raise self._unsupported(node)

    def _content(self, node: SyntaxTreeNode) -> Tree:
        return self._inlines([child for inline in node.children for child in inline.children])

    def _inlines(self, nodes: Sequence[SyntaxTreeNode]) -> Tree:
        return [element for node in nodes if (element := self._inline(node)) != ""]

    def _inline(self, node: SyntaxTreeNode) -> Any:
        if node.type == "text":
            if "](" in node.content:
                message = (
                    "a link is invalid: its address must not contain spaces (write _ in the name of a term)"
                )
                raise MarkdownError(message, self._line)
            return node.content
        if node.type in ("softbreak", "hardbreak"):
            return " "
        if node.type == "code_inline":
            return ["code", node.content]
        if node.type in _WRAPPERS:
            return [_WRAPPERS[node.type], self._inlines(node.children)]
        if node.type == "link":
            return self._link(node)
        raise self._unsupported(node)

    def _link(self, node: SyntaxTreeNode) -> Tree:
        content = self._inlines(node.children)
        address = str(node.attrs.get("href", ""))
        if address.startswith(TERM):
            name = address.removeprefix(TERM).replace("_", " ")
            if name not in shell.definitions():
                raise MarkdownError(f"the glossary has no term {name!r}", self._line)
            return ["term", name, content]
        if not address.startswith(_ADDRESSES):
            allowed = "an address with https:// or http://, or term: and a term of the glossary"
            raise MarkdownError(f"a link goes to {address!r}; allowed: {allowed}", self._line)
        return ["link", address, content]

    def _unsupported(self, node: SyntaxTreeNode) -> MarkdownError:
        allowed = "paragraphs, headings with ###, lists, quotes, code, emphasis, and links"
        kind = node.type.replace("_", " ")
        return MarkdownError(f"the text has an element of the kind {kind!r}; allowed: {allowed}", self._line)


MAX_RUNS = 6
MAX_CHOICES = 6
MAX_MINUTES = 240
MAX_SMOOTHING = 10_000
MAX_STEP = 1_000_000
# Default smoothing, in steps, of the measured curve for comparison with a drawn prediction.
PREDICTED_SMOOTHING = 20
# Number of points of a drawn curve, as in `assets/js/learn/drawn_curve.js`.
NUM_POINTS = 9

Text = Annotated[
    str, Parse(Annotated[str, Limit(pattern=r"(?s)\s*\S.*", words="a text that is not empty")], str.strip)
]
Inlines = Annotated[Tree, Parse(Text, parse_inlines)]
# X axis of a lesson's charts.
Axis = Literal["step", "samples", "time"]
# An evaluation metric is written `metric:NAME`.
_CURVES = "loss", "throughput", "learning_rate", "grad_norm", "validation_loss"
Curve = Annotated[
    str,
    Limit(pattern=rf"{'|'.join(_CURVES)}|metric:.*", words=f"one of {', '.join(_CURVES)}, metric:NAME"),
]
Index = Annotated[int, Limit(low=0)]
# Measured numbers of a run that a lesson's table can show as rows.
Number = Literal[
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
]


@dataclass(frozen=True, kw_only=True)
class SentCommand:
    """A command that the lesson sends to a run: an endpoint and its arguments, without the run id.

    Attributes:
        at_step: the command is sent when the page finds that the run has reached this step.
    """

    at_step: int
    name: str
    endpoint: str
    values: tuple[Any, ...]


_SENDABLE = [name for name, command in COMMANDS.items() if command.endpoint]


@dataclass(frozen=True, kw_only=True)
class _CommandFields:
    """The fields of each command; the others are its arguments."""

    at_step: Annotated[int, Limit(low=1, high=MAX_STEP)]
    name: Annotated[str, Limit(pattern="|".join(_SENDABLE), words=f"one of {', '.join(_SENDABLE)}")] = (
        _SENDABLE[0]
    )


def _parse_command(raw: dict[str, Any]) -> SentCommand:
    names = typed.field_names(_CommandFields)
    fields = typed.read(_CommandFields, {name: raw[name] for name in names if name in raw})
    command = COMMANDS[fields.name]
    assert command.endpoint is not None
    allowed = [*names, *(argument.name for argument in command.arguments)]
    for name in raw:
        if name not in allowed:
            raise RefusedError(ValueError(f"not a field; allowed: {', '.join(allowed)}"), None, name)
    values = []
    for argument in command.arguments:
        try:
            values.append(argument.validate(raw.get(argument.name, argument.default)))
        except ValueError as error:
            raise RefusedError(error, None, argument.name) from error
    return SentCommand(
        at_step=fields.at_step, name=fields.name, endpoint=command.endpoint.name, values=tuple(values)
    )


@dataclass(frozen=True, kw_only=True)
class LessonRun:
    """A run of a lesson, with its display name and configuration; missing fields get their defaults.

    Attributes:
        expect: expected final state; a run that is expected to fail demonstrates a hang or an error.
        commands: commands that the lesson sends during the run, and also to attempts based on this run.
    """

    name: Text
    config: Mapping[str, Any]
    expect: Literal["finished", "failed"] = "finished"
    commands: Annotated[
        tuple[Annotated[SentCommand, Parse(dict[str, Any], _parse_command)], ...], Limit(most=12)
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ChoiceQuestion:
    """A multiple-choice question with one correct answer.

    Attributes:
        right: index (from 0) of the answer that the lesson explains.
        because: explanation shown after the question was answered.
        measured: for each choice, the condition under which the runs show this choice (see `measures`), or an
        empty text; an empty tuple if the question is not about the runs.
    """

    question: Inlines
    choices: Annotated[tuple[Inlines, ...], Limit(least=2, most=MAX_CHOICES)]
    right: int
    because: Inlines = field(default_factory=list)
    measured: Annotated[
        tuple[Annotated[str, Parse(str, str.strip)], ...], Limit(least=2, most=MAX_CHOICES)
    ] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ChoiceQuestion:
        """Return a question from JSON values; polls of earlier versions have no conditions."""
        names = ("question", "choices", "right", "because")
        return cls(**{name: values[name] for name in names}, measured=tuple(values.get("measured", ())))


@dataclass(frozen=True, kw_only=True)
class DrawnCurve:
    """A question answered by drawing a curve.

    Attributes:
        run: index of the run whose curve is predicted, from 0.
        until: end of the x axis, which begins at 0.
        low, high: limits of the y axis.
        smoothing: smoothing of the measured curve, in units of the x axis.
    """

    question: Inlines
    curve: Curve
    axis: Axis = "step"
    run: Index
    until: float
    low: float
    high: float
    smoothing: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothing", PREDICTED_SMOOTHING if self.axis == "step" else 0)


@dataclass(frozen=True, kw_only=True)
class ChartMark:
    """A labelled position on a chart's x axis."""

    x: float
    words: Text


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
        waterfall: index (from 0) of the run whose gap to an ideal speed-up is broken down by causes.
        instrument: a panel of the section "Look closer" of a run's page, for each run or only for `run`.
    """

    caption: Tree
    see: Tree = field(default_factory=list)
    finding: Tree = field(default_factory=list)
    when: str = ""
    curve: str = ""
    axis: str = "step"
    smoothing: float = 0
    is_logarithmic: bool = False
    marks: tuple[ChartMark, ...] = ()
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
        choices: configuration changes, by label of the choice.
    """

    run: Index
    label: Text
    choices: Annotated[
        Mapping[str, Mapping[str, Any]],
        Limit(
            least=1,
            most=MAX_CHOICES,
            words=f"1 to {MAX_CHOICES} choices, each with the fields that it changes",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Question(ChoiceQuestion):
    """A question at the end of a lesson. A learner must run its attempt, if any, before answering."""

    attempt: Attempt | None = None


@dataclass(frozen=True, kw_only=True)
class _Picture:
    caption: Inlines
    see: Inlines = field(default_factory=list)
    finding: Inlines = field(default_factory=list)
    when: Text = ""


@dataclass(frozen=True, kw_only=True)
class _Chart(_Picture):
    curve: Curve
    axis: Axis = "step"
    smoothing: Annotated[int, Limit(low=0, high=MAX_SMOOTHING)] = 0
    logarithmic: bool = False
    marks: Annotated[tuple[ChartMark, ...], Limit(most=12)] = ()


@dataclass(frozen=True, kw_only=True)
class _Numbers(_Picture):
    numbers: Annotated[tuple[Number, ...], Limit(least=1)]


@dataclass(frozen=True, kw_only=True)
class _Bars(_Picture):
    bars: Literal["memory", "wait"]


@dataclass(frozen=True, kw_only=True)
class _Waterfall(_Picture):
    waterfall: int


@dataclass(frozen=True, kw_only=True)
class _Instrument(_Picture):
    instrument: Text
    run: Index | None = None


# Fields of each kind of picture, by the field that only this kind has.
_PICTURES: Mapping[str, type[_Picture]] = {
    "curve": _Chart,
    "numbers": _Numbers,
    "bars": _Bars,
    "waterfall": _Waterfall,
    "instrument": _Instrument,
}


def _parse_picture(raw: dict[str, Any]) -> Picture:
    kinds = [kind for kind in _PICTURES if kind in raw]
    if len(kinds) != 1:
        raise RefusedError(ValueError(f"a picture has one of {', '.join(_PICTURES)}"), None, "caption")
    picture = typed.read(_PICTURES[kinds[0]], raw)
    fields = dict(vars(picture))
    if isinstance(picture, _Chart):
        fields["is_logarithmic"] = fields.pop("logarithmic")
        fields["smoothing"] = span_of(picture.smoothing, "step" if picture.axis == "step" else "samples")
    return Picture(**fields)


def _parse_prediction(raw: dict[str, Any]) -> ChoiceQuestion | DrawnCurve:
    return typed.read(ChoiceQuestion, raw) if "choices" in raw else typed.read(DrawnCurve, raw)


@dataclass(frozen=True, kw_only=True)
class AnyHeader:
    """The fields in the header of each lesson."""

    title: Text
    minutes: Annotated[int, Limit(low=1, high=MAX_MINUTES)]
    summary: Text


@dataclass(frozen=True, kw_only=True)
class LessonHeader(AnyHeader):
    """The header of a lesson with a prediction."""

    runs: Annotated[
        tuple[LessonRun, ...], Limit(least=1, most=MAX_RUNS, words=f"1 to {MAX_RUNS} tables [[runs]]")
    ]
    prediction: Annotated[ChoiceQuestion | DrawnCurve, Parse(dict[str, Any], _parse_prediction)]
    pictures: Annotated[
        tuple[Annotated[Picture, Parse(dict[str, Any], _parse_picture)], ...],
        Limit(least=1, most=12, words="1 to 12 tables [[pictures]]"),
    ]
    questions: Annotated[tuple[Question, ...], Limit(least=1, most=12, words="1 to 12 tables [[questions]]")]


@dataclass(frozen=True, kw_only=True)
class Lesson(LessonHeader):
    """A lesson with a prediction.

    Attributes:
        name: identifier in the URL.
        before, see, explain: texts before the prediction, with the figures (may be empty), and after the
            figures.
    """

    name: str
    before: Tree
    see: Tree
    explain: Tree

    def prediction_values(self) -> dict[str, Any]:
        """Return the prediction as JSON values, with its kind."""
        kind = "curve" if isinstance(self.prediction, DrawnCurve) else "choice"
        return asdict(self.prediction) | {"kind": kind}
