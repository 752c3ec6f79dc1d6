"""The lab report document: one HTML file with lessons and runs."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import orjson

from ddp_gui.background.workers import module_output
from ddp_gui.http import front, shell
from ddp_gui.http.bundle import bundle
from ddp_gui.learn import outcome
from ddp_gui.learn.lesson import ChoiceQuestion
from ddp_gui.learn.measures import RunNumbers
from ddp_gui.learn.outcome import MeasuredOutcome
from ddp_gui.learn.report import charts, instruments, markup, measured, results
from ddp_gui.learn.report.charts import ChartCurve, ShownRun
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Hashed, Measured
from ddp_gui.run import try_page
from trainers.files import installation

_BROKEN = "broken on purpose"
# Maximum length of notes and messages, because a run can write text of any length.
_MAX_TEXT = 2_000


def draw_run(run: Measured, *, has_results: bool) -> Html:
    """Return a run as an HTML article.

    Args:
        has_results: True to include the confusion matrix, outputs of the model, and events.
    """
    info = run.info
    run_id = info["run_id"]
    heading = f"run-{run_id}"
    return tag(
        "article",
        tag(
            "header",
            tag("h3", name_of(info["name"]), id=heading),
            tag("span", info["state"], class_="state", data_state=info["state"]),
            tag("span", _BROKEN, class_="state", data_state="broken") if _is_broken(info) else None,
        ),
        tag("p", _subtitle(run), class_="soft"),
        _verdict(run),
        _remarks(run),
        _run_numbers(run),
        tag("h4", "Differences from the defaults"),
        _changes(info["fields"]),
        tag("details", tag("summary", "The whole configuration"), _configuration(info["fields"])),
        results.draw_results(run) if has_results else None,
        tag("h4", "The equivalent command"),
        tag("pre", tag("code", info["command"])),
        tag("p", _hash_note(run), class_="hash"),
        class_="card run",
        aria_labelledby=heading,
    )


def hash_line(run: Measured, hashed: Hashed) -> str:
    """Return a line for `sha256sum --check`, with a path relative to the runs directory."""
    return f"{hashed.sha256}  {run.info['run_id']}/events.jsonl"


def _is_broken(info: Mapping[str, Any]) -> bool:
    return info["mistake"] not in ("none", "", None)


def _subtitle(run: Measured) -> Html:
    info = run.info
    model, dataset, strategy = info["labels"]
    num_ranks = info["num_ranks"]
    ranks = f"{num_ranks} rank" + ("" if num_ranks == 1 else "s")
    newest_unix_s = run.series.newest_unix_s
    date = markup.moment(
        info["created_unix_s"] if newest_unix_s is None else newest_unix_s - run.series.active_s()
    )
    tags = [joined([" · ", name_of(label)]) for label in info["tags"]]
    return joined(
        [f"{info['run_id']} · {model} on ", name_of(dataset), f" · {strategy}, {ranks} · {date}", *tags]
    )


def _verdict(run: Measured) -> Html | None:
    if run.verdict is None:
        return None
    return tag("p", tag("strong", run.verdict.title), " ", run.verdict.reason)


def _remarks(run: Measured) -> Html | None:
    problem = run.series.problem.get("message") or run.info["error"]
    remarks = [tag("li", tag("strong", "It failed: "), _shorten(problem))] if problem else []
    if _is_broken(run.info):
        message = f"{_BROKEN.capitalize()}: the configuration has the mistake "
        remarks.append(tag("li", message, tag("code", run.info["mistake"]), "."))
    remarks += [tag("li", _shorten(warning)) for warning in run.warnings]
    if run.info["note"]:
        remarks.append(tag("li", "Note: ", tag("bdi", _shorten(run.info["note"]), class_="note")))
    return tag("ul", remarks, class_="remarks") if remarks else None


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"


def _run_numbers(run: Measured) -> Html:
    best = run.series.evaluations.best
    pairs = [
        (title, describe(run, run)) for name, (title, describe) in charts.ROWS.items() if name != "speed_up"
    ]
    if best:
        value = markup.metric(best["name"], best["value"])
        pairs.insert(2, ("Best validation", f"{value} at step {markup.count(best['step'])}"))
    pairs.append(("Trained on", _devices(run)))
    return markup.facts(pairs)


def _devices(run: Measured) -> str:
    """Return the ranks' devices as text, from the run's events."""
    num_ranks: dict[str, int] = {}
    for device in run.devices:
        name = str(device.get("name") or ("GPU" if device.get("kind") == "cuda" else "CPU"))
        memory = markup.size(device.get("memory_total_bytes"))
        label = f"{name}, {memory}" if device.get("kind") == "cuda" and memory != markup.UNKNOWN else name
        host = device.get("host")
        label = f"{label} ({host})" if host else label
        num_ranks[label] = num_ranks.get(label, 0) + 1
    if not num_ranks:
        return "not recorded"
    return "; ".join(
        f"{count} rank{'' if count == 1 else 's'} on {label}" for label, count in num_ranks.items()
    )


def _changes(fields: Sequence[Mapping[str, Any]]) -> Html:
    changed = [field for field in fields if not field["is_default"]]
    if not changed:
        return tag("p", "None: all fields have their defaults.", class_="soft")
    return tag(
        "ul",
        [tag("li", field["label"], " ", tag("b", _value(field["value"]))) for field in changed],
        class_="changes",
    )


def _configuration(fields: Sequence[Mapping[str, Any]]) -> Html:
    parts = []
    for topic, group in groupby(fields, key=lambda field: field["topic"]):
        rows = [
            tag(
                "div",
                tag("dt", field["label"], " ", tag("code", field["field"])),
                tag("dd", _value(field["value"])),
                data_changed=not field["is_default"],
            )
            for field in group
        ]
        parts.append(tag("section", tag("h5", topic), tag("dl", rows)))
    return tag("div", parts, class_="configuration")


def _value(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return markup.count(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _hash_note(run: Measured) -> Html:
    if run.hashed is None:
        return joined("It has no events yet.")
    note = " available at that time" if run.is_live else ""
    return joined(
        [
            f"SHA-256 of the {run.hashed.num_bytes:,} bytes of events.jsonl{note}: ",
            tag("code", run.hashed.sha256),
        ]
    )


# Labels of a choice, by (is right, was chosen).
_OUTCOMES = {(True, True): "my answer, right", (True, False): "the right answer", (False, True): "my answer"}
# Descriptions by the mean distance of a drawn curve, as a share of the axis; same as in
# `assets/js/learn/drawn_curve.js`.
_CLOSENESS = ((0.06, "Very close"), (0.15, "The right shape"), (float("inf"), "A different shape"))

_COMPARED_IN_LESSON = ("loss", "validation", "num_steps", "throughput", "took")

Lesson = Mapping[str, Any]


class DoneLesson:
    """A lesson of a report, with the outcomes of its runs.

    Attributes:
        own_runs, attempt_runs: the existing runs of the lesson, and of the attempts of its questions.
        is_revealed: True if all of the lesson's own runs have ended; a deleted run counts as ended.
        outcome: outcome of the predicted choice; None if the prediction is a drawn curve.
        questions: outcome of each question.
    """

    def __init__(self, lesson: Mapping[str, Any], runs: Mapping[str, Measured]) -> None:
        self.lesson = lesson
        self.id = f"lesson-{lesson['key']}"
        self.own_runs = _existing_runs(lesson["runs"], runs, 0)
        self.attempt_runs = _existing_runs(_attempts(lesson), runs, len(lesson["runs"]))
        is_started = all(run["run_id"] is not None for run in lesson["runs"])
        self.is_revealed = is_started and not any(shown.run.is_live for shown in self.own_runs)
        numbers: dict[int | str, RunNumbers] = {shown.index: shown.numbers() for shown in self.own_runs}
        prediction = lesson["prediction"]
        is_choice = prediction["kind"] == "choice"
        self.outcome = outcome.of_choice(ChoiceQuestion.of(prediction), numbers) if is_choice else None
        self.questions = []
        for number, question in enumerate(lesson["questions"]):
            shown_runs = _existing_runs(_attempts(lesson, number), runs, 0)
            attempt_numbers: dict[int | str, RunNumbers] = {
                shown.name: shown.numbers() for shown in shown_runs
            }
            self.questions.append(outcome.of_choice(ChoiceQuestion.of(question), numbers | attempt_numbers))

    @property
    def is_done(self) -> bool:
        """True if the lesson was predicted, its runs have ended, and all questions are answered."""
        is_answered = all(question["answer"] is not None for question in self.lesson["questions"])
        return self.lesson["predicted"] is not None and is_answered and self.is_revealed

    @property
    def num_right_answers(self) -> int:
        """The number of correct answers, by measurement, or by the lesson if there is no measurement."""
        return sum(
            question["answer"] is not None and question["answer"] == _right_answer(question, result)
            for question, result in zip(self.lesson["questions"], self.questions, strict=True)
        )

    def summarize(self) -> str:
        """Summarize the result in one line."""
        questions = self.lesson["questions"]
        num_open = sum(question["answer"] is None for question in questions)
        answers = f"{self.num_right_answers} of {len(questions)} questions right"
        if num_open:
            answers += f", {num_open} not answered"
        if self.lesson["predicted"] is None:
            return f"not predicted; {answers}"
        if not self.is_revealed:
            return f"predicted, not run to the end; {answers}"
        return f"{_outcome_sentence(self)} {answers[0].upper()}{answers[1:]}."


def draw_lesson(done: DoneLesson, max_points: int) -> Html:
    """Return a lesson as an HTML section."""
    lesson = done.lesson
    number = f"{lesson['number']}. " if lesson["number"] else ""
    return tag(
        "section",
        tag("h2", number, name_of(lesson["title"]), id=done.id),
        tag("p", lesson["summary"], class_="soft"),
        _prediction(done),
        tag("h3", "Measurements"),
        _measured(lesson, [*done.own_runs, *done.attempt_runs], max_points),
        tag("h3", "Questions"),
        [_question(lesson, number, result) for number, result in enumerate(done.questions)],
        _draw_text_box(),
        class_="lesson",
        aria_labelledby=done.id,
    )


def draw_code_lesson(lesson: Lesson) -> Html:
    """Return a lesson in code as an HTML section: each check, and the code of the latest run."""
    result, num_tries = lesson["result"], lesson["num_tries"]
    marks = {"passed": "✓", "failed": "✗", "open": "·"}
    rows = [
        tag(
            "li",
            f"{marks[check['outcome']]} {check['label']}",
            tag("p", _shorten(check["words"]), class_="soft") if check["words"] else None,
        )
        for check in result["checks"]
    ]
    verdict = "Right" if result["is_passed"] else "Not right yet" if result["is_over"] else "No result"
    note = "; the solution was shown" if lesson["is_solution_shown"] else ""
    return tag(
        "section",
        tag("h2", name_of(lesson["title"])),
        tag("p", lesson["summary"], class_="soft"),
        tag("p", f"{verdict}, after {num_tries} run{'' if num_tries == 1 else 's'}{note}.", class_="outcome"),
        tag("ul", rows, class_="remarks") if rows else None,
        tag("h3", "My code"),
        tag("pre", tag("code", lesson["code"] or "The run no longer exists.")),
        _draw_text_box(),
        class_="lesson",
    )


def _right_choice(question: Mapping[str, Any], result: MeasuredOutcome) -> int | None:
    """Return the choice to mark as correct: the measured one, or the lesson's without a condition."""
    return question["right"] if result.verdict == "unchecked" else result.happened


def _draw_text_box() -> Html:
    """Return an empty box for the learner's own text, to be typed before printing or written on paper."""
    label = "In my own words"
    box = tag(
        "div",
        class_="own-words",
        contenteditable="true",
        role="textbox",
        aria_multiline="true",
        aria_label=label,
    )
    return tag("div", tag("h3", label), box, class_="own")


def _right_answer(question: Mapping[str, Any], result: MeasuredOutcome) -> int | None:
    """Return the answer to mark as correct: the measured answer, or the lesson's answer if not measured."""
    return question["right"] if result.verdict in ("unchecked", "unmeasured") else result.happened


def _attempts(lesson: Lesson, number: int | None = None) -> list[Mapping[str, Any]]:
    """Return the attempts of a question, or of all questions, as runs named by their choices."""
    attempts = [attempt for attempt in lesson["attempts"] if number in (None, attempt["question"])]
    return [{"name": attempt["choice"], "run_id": attempt["run_id"]} for attempt in attempts]


def _existing_runs(
    entries: Sequence[Mapping[str, Any]], runs: Mapping[str, Measured], first: int
) -> list[ShownRun]:
    # Deleted runs leave a gap in the numbering, because conditions and pictures refer to runs by number.
    return [
        ShownRun(name=entry["name"], index=first + number, run=runs[entry["run_id"]])
        for number, entry in enumerate(entries)
        if entry["run_id"] in runs
    ]


def _prediction(done: DoneLesson) -> Html:
    prediction, predicted = done.lesson["prediction"], done.lesson["predicted"]
    is_shown = done.is_revealed and predicted is not None
    parts = [tag("h3", "Prediction"), tag("p", inlines(prediction["question"]), class_="question")]
    if done.outcome is not None:
        right = _right_choice(prediction, done.outcome)
        parts.append(_choices(prediction, predicted, right if is_shown else None))
    elif predicted is not None:
        parts.append(_drawn_values(prediction, predicted))
    if predicted is None:
        parts.append(tag("p", "No prediction was locked.", class_="soft"))
    elif not done.is_revealed:
        parts.append(tag("p", "Not all runs of the lesson have ended.", class_="soft"))
    else:
        parts.append(tag("p", _outcome_sentence(done), class_="outcome"))
        if done.outcome is not None:
            parts += _explain(prediction, right, done.outcome)
    return tag("div", parts, class_="card")


def _explain(question: Mapping[str, Any], right: int | None, result: MeasuredOutcome) -> list[Html]:
    """Return the reasons for doubt, and the explanation if the choice that it explains is correct."""
    reasons = [tag("p", reason, class_="soft") for reason in result.reasons]
    is_explained = right == question["right"]
    return [*reasons, tag("p", inlines(question["because"]), class_="because")] if is_explained else reasons


def _outcome_sentence(done: DoneLesson) -> str:
    lesson = done.lesson
    prediction, predicted = lesson["prediction"], lesson["predicted"]
    if done.outcome is not None:
        right = _right_choice(prediction, done.outcome)
        if right is None:
            return "These runs do not show which prediction was right."
        return (
            "My prediction was correct." if predicted == right else "The result differs from my prediction."
        )
    run_id = lesson["runs"][prediction["run"]]["run_id"]
    run = next((shown.run for shown in done.own_runs if shown.run.info["run_id"] == run_id), None)
    curve = (
        charts.EMPTY
        if run is None
        else charts.curve_of(run, prediction["curve"], prediction["axis"], prediction["smoothing"])
    )
    guess = _guess(prediction, predicted)
    pairs = [
        (float(y), value)
        for x, y in zip(guess.x, guess.y, strict=True)
        if (value := curve.value_at(float(x))) is not None
    ]
    if not pairs:
        return "No measurement is available to compare the prediction with."
    distance = sum(abs(y - value) for y, value in pairs) / len(pairs)
    share = distance / (prediction["high"] - prediction["low"])
    description = next(
        description
        for max_distance, description in _CLOSENESS
        if share < max_distance or max_distance == float("inf")
    )
    return f"{description}: my curve is {markup.number(distance, 2)} away on average."


def _guess(prediction: Mapping[str, Any], values: Sequence[float]) -> ChartCurve:
    return ChartCurve(x=np.linspace(0.0, prediction["until"], len(values)), y=np.array(values, np.float64))


def _drawn_values(prediction: Mapping[str, Any], values: Sequence[float]) -> Html:
    guess = _guess(prediction, values)
    pairs = "; ".join(
        f"{markup.number(float(y), 3)} at {markup.number(float(x), 3)}"
        for x, y in zip(guess.x, guess.y, strict=True)
    )
    axis_label = charts.AXES.get(prediction["axis"], prediction["axis"])
    return tag(
        "p", f"My drawn {charts.curve_label(prediction['curve'])}, over {axis_label}: {pairs}.", class_="soft"
    )


def _choices(question: Mapping[str, Any], chosen: int | None, right: int | None) -> Html:
    """Return the choices of a question as a list.

    Args:
        right: the choice to mark as correct; None if it is unknown or the question was not answered.
    """
    items = []
    for number, choice in enumerate(question["choices"]):
        is_chosen, is_right = number == chosen, number == right
        label = _OUTCOMES.get((is_right, is_chosen))
        state = ("right" if is_right else "wrong") if label and right is not None else None
        items.append(
            tag(
                "li",
                tag("span", inlines(choice)),
                tag("span", label, class_="said") if label else None,
                data_state=state,
                data_chosen=is_chosen,
            )
        )
    return tag("ul", items, class_="choices")


def _measured(lesson: Lesson, runs: Sequence[ShownRun], max_points: int) -> Html:
    if not runs:
        return tag("p", "No run of this lesson was started, or the runs were deleted.", class_="soft")
    curve_pictures = [picture for picture in lesson["pictures"] if picture["curve"]]
    tables = [picture for picture in lesson["pictures"] if picture["numbers"]]
    links = [
        joined(
            [
                " · " if number else None,
                tag("a", name_of(shown.name), href=f"#run-{shown.run.info['run_id']}"),
            ]
        )
        for number, shown in enumerate(runs)
    ]
    return joined(
        [
            [instruments.draw_picture(picture, runs) for picture in lesson["pictures"]],
            charts.chart_grid(_charts(lesson, curve_pictures, runs, max_points)),
            [charts.numbers_table(runs, table["numbers"], inlines(table["caption"])) for table in tables]
            or charts.numbers_table(runs, _COMPARED_IN_LESSON),
            tag("p", "The runs: ", links, class_="soft screen-only"),
        ]
    )


def _charts(
    lesson: Lesson, pictures: Sequence[Mapping[str, Any]], runs: Sequence[ShownRun], max_points: int
) -> list[Html | None]:
    """Return a lesson's charts. A drawn prediction is in its curve's chart, or in a separate chart."""
    prediction, predicted = lesson["prediction"], lesson["predicted"]
    is_drawn = prediction["kind"] == "curve" and predicted is not None
    guess = _guess(prediction, predicted) if is_drawn else None
    plots = [(picture["curve"], picture["axis"], picture["smoothing"], picture) for picture in pictures]
    if is_drawn and (prediction["curve"], prediction["axis"]) not in [plot[:2] for plot in plots]:
        plots.insert(0, (prediction["curve"], prediction["axis"], prediction["smoothing"], {}))
    return [
        charts.chart_of_curve(
            runs,
            curve,
            axis,
            max_points,
            smoothing=smoothing,
            guess=guess if is_drawn and (prediction["curve"], prediction["axis"]) == (curve, axis) else None,
            is_wide=number == 0 or (number == len(plots) - 1 and number % 2 == 1),
            picture=picture,
        )
        for number, (curve, axis, smoothing, picture) in enumerate(plots)
    ]


def _question(lesson: Lesson, number: int, result: MeasuredOutcome) -> Html:
    question = lesson["questions"][number]
    answer, right = question["answer"], _right_answer(question, result)
    attempted = [attempt["name"] for attempt in _attempts(lesson, number)]
    parts = [
        tag("p", inlines(question["question"]), class_="question"),
        _choices(question, answer, right if answer is not None else None),
    ]
    if attempted:
        parts.append(tag("p", "My experiment: ", joined(_list_names(attempted)), ".", class_="soft"))
    if answer is None:
        parts.append(tag("p", "Not answered.", class_="soft"))
    else:
        parts += _explain(question, right, result)
    return tag("div", parts, class_="card")


def _list_names(names: Sequence[str]) -> list[Html]:
    return [
        joined([", " if number else None, name_of(name)]) for number, name in enumerate(dict.fromkeys(names))
    ]


STYLES = ("shared/colours", "run/charts", "run/ranks", "learn/drawings", "learn/report")
SCRIPT = "learn/report/charts.js"
# Limits of a file: Plotly takes 0.65 MB, compressed, and a point 13 bytes, so 1.4 MB remain for text.
MAX_BYTES = 3_000_000
MAX_TOTAL_POINTS = 70_000
MAX_POINTS, MIN_POINTS = 1_600, 60
_CURVES_PER_RUN = 9
_MAX_RUNS_PER_CHART = 12
_COMPARED = ("loss", "validation", "num_steps", "global_batch", "throughput", "took")


def stream_report(gathered: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the file's bytes. A separate process makes them, so that the page stays responsive."""
    return module_output("ddp_gui.learn.report.document", gathered)


def generate_report(gathered: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the file's parts from gathered inputs (`request.gather_inputs`). Reads the runs' events."""
    runs, unread = _read(gathered["runs"])
    lessons = [DoneLesson(each | {"key": number}, runs) for number, each in enumerate(gathered["lessons"], 1)]
    max_points = min(MAX_POINTS, max(MIN_POINTS, MAX_TOTAL_POINTS // max(1, _CURVES_PER_RUN * len(runs))))
    has_lessons = bool(lessons or gathered.get("in_code"))
    yield _head(gathered["name"], "of-lessons" if has_lessons else "of-runs").encode()
    yield _title(gathered, lessons, len(runs)).encode()
    for lesson in lessons:
        yield draw_lesson(lesson, max_points).encode()
    for in_code in gathered.get("in_code", ()):
        yield draw_code_lesson(in_code).encode()
    other_runs = [runs[run_id] for run_id in gathered["others"] if run_id in runs]
    if other_runs:
        yield _draw_other_runs(other_runs, max_points).encode()
    yield tag("h2", "The runs", id="runs").encode()
    has_results = not has_lessons and len(runs) <= results.MAX_RUNS
    drawn = [draw_run(run, has_results=has_results) for run in runs.values()]
    yield tag("div", drawn, class_="runs").encode()
    if unread:
        yield tag(
            "p", "No longer available, or not readable: ", ", ".join(unread), ".", class_="soft"
        ).encode()
    yield _hashes(list(runs.values())).encode()
    yield _draw_versions(gathered).encode()
    yield f"</main>{end(bundle(SCRIPT))}".encode()


def _read(infos: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Measured], list[str]]:
    measured_runs = dict(zip(infos, measured.read_all(list(infos.values())), strict=True))
    runs = {run_id: run for run_id, run in measured_runs.items() if run is not None}
    return runs, [run_id for run_id in measured_runs if run_id not in runs]


def _head(name: str, kind: str) -> str:
    title = f"Lab report · {name}" if name else "Lab report"
    return f'{head(title, STYLES, bundle(SCRIPT))}<body><main class="ddp {kind}">'


def head(title: str, styles: Sequence[str], script: str) -> str:
    """Return a file up to its body. The file may load nothing and execute only the script and Plotly."""
    style = try_page.read_styles(styles)
    policy = front.file_page_policy([script, shell.vendored("plotly-basic.min.js").decode()], style)
    inside = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    return f'<!doctype html>\n<html lang="en">{inside}'


def end(script: str) -> str:
    """Return the end of a file: Plotly, compressed, and the script."""
    plotly = base64.b64encode(shell.compressed("plotly-basic.min.js")).decode()
    return (
        "<noscript><p>The charts need JavaScript, which is turned off.</p></noscript>"
        f'<script type="text/plain" id="packed-plotly">{plotly}</script>'
        f"<script type=module>{script}</script></body></html>\n"
    )


def _title(gathered: Mapping[str, Any], lessons: Sequence[DoneLesson], num_runs: int) -> Html:
    name, date = gathered["name"], markup.moment(gathered["made_unix_s"])
    num_lessons = len(lessons) + len(gathered.get("in_code", ()))
    counts = [f"{num_lessons} lesson{'' if num_lessons == 1 else 's'}"] if num_lessons else []
    counts.append(f"{num_runs} run{'' if num_runs == 1 else 's'}")
    rows = [
        tag(
            "li",
            tag("a", name_of(done.lesson["title"]), href=f"#{done.id}"),
            " ",
            tag("span", done.summarize(), class_="soft"),
            value=done.lesson["number"],
        )
        for done in lessons
    ]
    return tag(
        "header",
        tag("h1", "Lab report"),
        tag("p", name_of(name), class_="by") if name else None,
        tag("p", f"{date} · {' and '.join(counts)}", class_="soft"),
        _total(lessons, gathered["num_lessons"]) if lessons else None,
        tag("ol", rows, class_="contents") if rows else None,
        class_="title",
    )


def _total(lessons: Sequence[DoneLesson], num_known: int) -> Html:
    """Return the learner's total score over the report's lessons."""
    num_questions = sum(len(done.questions) for done in lessons)
    num_right = sum(done.num_right_answers for done in lessons)
    num_done = sum(done.is_done for done in lessons)
    num_in_all = max(num_known, len(lessons))
    text = f"{num_done} of {num_in_all} lessons done, {num_right} of {num_questions} questions right."
    if num_done == num_in_all:
        text = f"All {num_done} lessons are done. {num_right} of {num_questions} questions right."
    return tag("p", text, class_="total")


def _draw_other_runs(runs: Sequence[Measured], max_points: int) -> Html:
    """Return charts of runs without a lesson, in groups in which all lines are distinguishable."""
    shown = [ShownRun(name=run.info["name"], index=index, run=run) for index, run in enumerate(runs)]
    parts: list[Html | None] = []
    for first in range(0, len(shown), _MAX_RUNS_PER_CHART):
        chunk = shown[first : first + _MAX_RUNS_PER_CHART]
        parts.append(charts.standard_charts(chunk, max_points))
        parts.append(charts.numbers_table(chunk, _COMPARED))
    return tag("section", tag("h2", "Runs side by side" if len(runs) > 1 else "Curves"), parts)


def _hashes(runs: Sequence[Measured]) -> Html:
    lines = [hash_line(run, run.hashed) for run in runs if run.hashed is not None]
    live = [run.info["run_id"] for run in runs if run.is_live]
    text = (
        "All data about runs in this report comes from their events.jsonl. To check these files, save "
        "the lines below as hashes.txt next to the folders of the runs, and run "
    )
    note = f" The file of a live run ({', '.join(live)}) has grown since." if live else ""
    return tag(
        "section",
        tag("h2", "Where the numbers come from"),
        tag("p", text, tag("code", "sha256sum --check hashes.txt"), f".{note}"),
        tag("pre", tag("code", "\n".join(lines))),
        class_="hashes",
    )


def _draw_versions(gathered: Mapping[str, Any]) -> Html:
    machine = gathered["machine"]
    gpus = [f"{gpu['name'] or 'GPU'}, {markup.size(gpu['memory_bytes'])}" for gpu in machine["gpus"]] or [
        "none"
    ]
    facts = [
        ("Processor", f"{machine['cpu']}, {machine['num_cores']} cores for runs"),
        ("Memory", markup.size(machine["memory_bytes"])),
        ("GPUs", "; ".join(gpus)),
        ("This program", installation.version()),
        *((package["name"], package["version"] or "not installed") for package in gathered["versions"]),
    ]
    return tag(
        "section",
        tag("h2", "Machine and versions"),
        tag(
            "p",
            "Versions of the page's machine when this report was made, because runs do not record "
            "versions. The section of each run lists its devices, from its events.",
            class_="soft",
        ),
        markup.facts(facts),
    )


if __name__ == "__main__":
    for chunk in generate_report(orjson.loads(sys.stdin.buffer.read())):
        sys.stdout.buffer.write(chunk)
