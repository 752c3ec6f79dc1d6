"""A lesson as one HTML file with recorded runs, which needs no server: predict, see, explain, check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson

from ddp_gui.http import shell
from ddp_gui.http.bundle import bundle
from ddp_gui.learn import outcome
from ddp_gui.learn.code_lesson import CodeLesson
from ddp_gui.learn.lesson import ChoiceQuestion, DrawnCurve, Lesson, Picture, Question, Tree
from ddp_gui.learn.measures import RunName, RunNumbers, Runs
from ddp_gui.learn.outcome import MeasuredOutcome
from ddp_gui.learn.report import charts, document, instruments
from ddp_gui.learn.report.charts import ShownRun
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured

STYLES = (*document.STYLES, "learn/lesson_page")
SCRIPT = "learn/report/lesson.js"
MAX_POINTS = 800
# Rows of the table below the runs of an attempt.
_COMPARED = ("loss", "validation", "num_steps", "throughput")
SYSTEMS = "runs on computers with Linux, Windows (in WSL2) or macOS"
_BLOCKS = {"p": "p", "h3": "h3", "ul": "ul", "ol": "ol", "quote": "blockquote"}
# Instruments that users can play or move in the app; the file shows one state.
_MOVING = {"step-theatre", "all-reduce-theatre", "who-saw-what", "slow-rank"}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A lesson with its recorded runs.

    Attributes:
        runs: the lesson's runs, in its order.
        attempts: for each question with an attempt, by its number, the run of each choice.
    """

    lesson: Lesson
    number: int
    runs: Sequence[Measured]
    attempts: Mapping[int, Mapping[str, Measured]]

    def numbers(self, question: int | None = None) -> Runs:
        """Return the measured numbers of the runs, and of a question's attempts."""
        numbers: dict[RunName, RunNumbers] = {shown.index: shown.numbers() for shown in self.shown()}
        for choice, run in self.attempts.get(-1 if question is None else question, {}).items():
            numbers[choice] = ShownRun(name=choice, index=0, run=run).numbers()
        return numbers

    def shown(self) -> list[ShownRun]:
        """Return the lesson's runs with their names, for figures."""
        return [
            ShownRun(name=lesson_run.name, index=index, run=run)
            for index, (lesson_run, run) in enumerate(zip(self.lesson.runs, self.runs, strict=True))
        ]


def page(
    recorded: Recorded, *, links: Sequence[tuple[str, str]], product: Mapping[str, str]
) -> Iterator[str]:
    """Yield the file of a lesson.

    Args:
        links: title and file name of the next lesson and of the list.
        product: `product`, `get_it` (a sentence), `machine` and `recorded` (the day), as texts.
    """
    lesson = recorded.lesson
    used: dict[str, None] = {}
    parts = [
        tag(
            "header",
            tag("p", f"Lesson {recorded.number} · about {lesson.minutes} minutes", class_="soft"),
            tag("h1", name_of(lesson.title)),
            tag("p", lesson.summary, class_="lead"),
            tag(
                "p",
                f"The runs of this lesson are recordings of real training on {product['machine']}, "
                f"{product['recorded']}. This file needs no internet and no installation.",
                class_="soft",
            ),
        ),
        _blocks(lesson.before, used),
        _prediction(recorded, used),
        tag("section", tag("h2", "What happened"), _pictures(recorded, used), data_stage="see"),
        tag("section", tag("h2", "Why"), _blocks(lesson.explain, used), data_stage="explain"),
        tag(
            "section",
            tag("h2", "Check yourself"),
            [_question(recorded, number, used) for number in range(len(lesson.questions))],
            data_stage="questions",
        ),
        _live(recorded, product),
        _terms(used),
        tag("nav", [tag("a", title, href=name) for title, name in links], aria_label="Lessons"),
    ]
    script = bundle(SCRIPT, document.SCRIPT)
    yield document.head(f"{lesson.title} · {product['product']}", STYLES, script)
    yield f'<body><main class="ddp lesson-page">{joined(parts)}</main>{document.end(script)}'


def index(
    lessons: Sequence[Lesson], files: Sequence[str], in_code: Sequence[CodeLesson], product: Mapping[str, str]
) -> Iterator[str]:
    """Yield the list of the exported lessons, and of the lessons in code, which need the program."""
    rows = [
        tag(
            "li",
            tag("a", name_of(lesson.title), href=file),
            tag("p", lesson.summary, " ", tag("span", f"{lesson.minutes} minutes", class_="soft")),
        )
        for lesson, file in zip(lessons, files, strict=True)
    ]
    minutes = sum(lesson.minutes for lesson in lessons)
    yield document.head(f"Lessons · {product['product']}", STYLES, "")
    yield "<body>" + tag(
        "main",
        tag("h1", "Distributed training in lessons"),
        tag(
            "p",
            f"{len(lessons)} lesson{'s' * (len(lessons) != 1)} with recorded runs, {minutes} minutes in "
            "all. Predict what happens when several processes train one network, see the result, and read "
            "the explanation.",
            class_="lead",
        ),
        tag("ol", rows, class_="contents"),
        tag(
            "aside",
            tag("h2", "Only in the program"),
            tag(
                "p",
                f"{product['product']} {SYSTEMS}. It starts the runs on your computer. ",
                product["get_it"],
            ),
            tag("p", "More lessons, in which you change and run code:"),
            tag(
                "ul",
                [
                    tag("li", tag("b", name_of(code_lesson.title)), ": ", code_lesson.summary)
                    for code_lesson in in_code
                ],
            ),
        ),
        class_="lesson-page",
    ) + "</body></html>\n"  # fmt: skip


def _blocks(tree: Tree, used: dict[str, None]) -> Html:
    return joined(_block(block, used) for block in tree)


def _block(block: Sequence[Any], used: dict[str, None]) -> Html:
    kind, content = block
    if kind == "pre":
        return tag("pre", tag("code", content))
    if kind in ("ul", "ol"):
        return tag(kind, [tag("li", _blocks(item, used)) for item in content])
    return tag(_BLOCKS[kind], _blocks(content, used) if kind == "quote" else _inlines(content, used))


def _inlines(tree: Tree, used: dict[str, None]) -> Html:
    return inlines(tree, lambda term: _term_link(term, used))


def _term_link(term: str, used: dict[str, None]) -> str:
    used[term] = None
    return f"#{_term_id(term)}"


def _term_id(term: str) -> str:
    return "term-" + "-".join(term.lower().split())


def _terms(used: Mapping[str, None]) -> Html | None:
    """Return the definitions of the terms that the lesson links to."""
    definitions = shell.definitions()
    rows = [
        tag("div", tag("dt", term, id=_term_id(term)), tag("dd", definitions[term]))
        for term in sorted(used, key=str.lower)
    ]
    return tag("section", tag("h2", "Terms"), tag("dl", rows, class_="terms")) if rows else None


def _prediction(recorded: Recorded, used: dict[str, None]) -> Html:
    prediction = recorded.lesson.prediction
    lock = tag("button", "Lock my prediction", type="submit")
    status = tag("p", class_="said", role="status")
    if isinstance(prediction, DrawnCurve):
        measured = charts.curve_of(
            recorded.runs[prediction.run], prediction.curve, prediction.axis, prediction.smoothing
        )
        positions = np.linspace(0.0, prediction.until, 9)
        facts = {
            "low": prediction.low,
            "high": prediction.high,
            "until": prediction.until,
            "curve": charts.curve_label(prediction.curve),
            "axisText": charts.AXES.get(prediction.axis, prediction.axis),
            "measured": [measured.value_at(float(x)) for x in positions],
        }
        content = [
            tag("p", _inlines(prediction.question, used), class_="question"),
            tag("div", data_curve=orjson.dumps(facts).decode()),
        ]
    else:
        result = outcome.of_choice(prediction, recorded.numbers())
        content = [_choices(prediction, result, "prediction", used)]
    return tag(
        "section",
        tag("h2", "Predict first"),
        tag("form", content, lock, status, class_="card", data_form="prediction"),
    )


def _choices(question: ChoiceQuestion, result: MeasuredOutcome, name: str, used: dict[str, None]) -> Html:
    """Return radio buttons, with the choice to mark as correct, and the explanation."""
    right = question.right if result.verdict in ("unchecked", "unmeasured", "doubtful") else result.happened
    labels = [
        tag(
            "label",
            tag("input", type="radio", name=name, value=number, required=True),
            tag("span", _inlines(choice, used)),
        )
        for number, choice in enumerate(question.choices)
    ]
    explanation = [tag("p", choice, class_="soft") for choice in result.reasons]
    if right == question.right:
        explanation.append(tag("p", _inlines(question.because, used), class_="because"))
    elif right is None:
        explanation.append(tag("p", "These runs do not show which choice is right.", class_="soft"))
    return tag(
        "fieldset",
        tag("legend", _inlines(question.question, used)),
        labels,
        tag("div", explanation, data_because=True),
        data_right="" if right is None else right,
    )


def _pictures(recorded: Recorded, used: dict[str, None]) -> Html:
    lesson, runs = recorded.lesson, recorded.shown()
    parts: list[Html | None] = [_blocks(lesson.see, used)]
    for picture in lesson.pictures:
        if picture.see:
            parts.append(tag("p", _inlines(picture.see, used), class_="see"))
        parts.append(_picture(picture, runs))
        if picture.instrument in _MOVING:
            parts.append(tag("p", "This picture can only be played or changed in Rankscope.", class_="soft"))
        result = outcome.of_picture(picture, recorded.numbers())
        if picture.finding and result.verdict == "explained":
            parts.append(tag("p", _inlines(picture.finding, used), class_="finding"))
        parts += [tag("p", reason, class_="soft") for reason in result.reasons]
    return joined(parts)


def _picture(picture: Picture, runs: Sequence[ShownRun]) -> Html | None:
    fields = asdict(picture)
    if picture.curve:
        figure = charts.chart_of_curve(
            runs,
            picture.curve,
            picture.axis,
            MAX_POINTS,
            smoothing=picture.smoothing,
            is_wide=True,
            picture=fields,
        )
        return charts.chart_grid([figure])
    if picture.numbers:
        return charts.numbers_table(runs, picture.numbers, inlines(picture.caption))
    return instruments.draw_picture(fields, runs)


def _question(recorded: Recorded, number: int, used: dict[str, None]) -> Html:
    question = recorded.lesson.questions[number]
    result = outcome.of_choice(question, recorded.numbers(number))
    return tag(
        "form",
        _choices(question, result, f"question-{number}", used),
        tag("button", "Check", type="submit"),
        tag("p", class_="said", role="status"),
        tag("div", _attempt(recorded, number, question), data_because=True),
        class_="card",
        data_form="question",
    )


def _attempt(recorded: Recorded, number: int, question: Question) -> Html | None:
    """Return the recorded runs of a question's attempt, and the original run."""
    runs = recorded.attempts.get(number, {})
    if question.attempt is None or not runs:
        return None
    base = recorded.shown()[question.attempt.run]
    shown = [
        ShownRun(name=base.name, index=0, run=base.run),
        *(ShownRun(name=choice, index=index, run=run) for index, (choice, run) in enumerate(runs.items(), 1)),
    ]
    curve = charts.chart_of_curve(shown, "loss", "step", MAX_POINTS // 2, smoothing=20, is_wide=True)
    return joined(
        [
            tag("p", "The runs that answer this question:", class_="soft"),
            charts.numbers_table(shown, _COMPARED),
            charts.chart_grid([curve]),
        ]
    )


def _live(recorded: Recorded, product: Mapping[str, str]) -> Html:
    """Return a section about the features that need the program: other settings and moving parts."""
    features = ["start the runs yourself and change their settings"]
    if any(picture.instrument in _MOVING for picture in recorded.lesson.pictures):
        features.append("play the recorded steps and move the controls of the pictures")
    return tag(
        "aside",
        tag("h2", "Only in the program"),
        tag(
            "p",
            f"{product['product']} {SYSTEMS}. There you can {' and '.join(features)}. ",
            product["get_it"],
        ),
    )
