"""A lesson in a report: what was predicted, what came, and the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddp_gui.learn import conditions, outcome
from ddp_gui.learn.lesson import Choice
from ddp_gui.learn.measures import RunNumbers
from ddp_gui.learn.outcome import Outcome
from ddp_gui.learn.report import curves, instruments, number_words, pictures
from ddp_gui.learn.report.curves import Curve
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured
from ddp_gui.learn.report.pictures import Shown

# By whether a choice is the right one, and whether it was chosen.
_OUTCOMES = {(True, True): "my answer, right", (True, False): "the right answer", (False, True): "my answer"}
# By how far a drawn curve is away on average, as a share of the axis; as in `assets/js/learn/prediction.js`.
_CLOSENESS = ((0.06, "Very close"), (0.15, "The right shape"), (float("inf"), "It went another way"))

_COMPARED = ("loss", "validation", "num_steps", "throughput", "took")

Lesson = Mapping[str, Any]
Runs = Mapping[str, Measured]


def drawn(lesson: Lesson, runs: Runs, max_points: int) -> Html:
    """Return a lesson as a section."""
    own = _shown(lesson["runs"], runs, 0)
    tried = _shown(
        [{"name": each["choice"], "run_id": each["run_id"]} for each in lesson["attempts"]],
        runs,
        len(lesson["runs"]),
    )
    is_revealed = _is_revealed(lesson, runs)
    numbers = {shown.index: _numbers(shown) for shown in own}
    number = f"{lesson['number']}. " if lesson["number"] else ""
    return tag(
        "section",
        tag("h2", number, name_of(lesson["title"]), id=lesson_id(lesson)),
        tag("p", lesson["summary"], class_="soft"),
        _prediction(lesson, own, is_revealed=is_revealed),
        tag("h3", "What was measured"),
        _measured(lesson, [*own, *tried], max_points),
        tag("h3", "Questions"),
        [
            _question(lesson, number, _found_of(lesson, number, runs, numbers))
            for number, question in enumerate(lesson["questions"])
        ],
        _own_words(),
        class_="lesson",
        aria_labelledby=lesson_id(lesson),
    )


def _numbers(shown: Shown) -> RunNumbers:
    about = shown.run.about
    return RunNumbers.of(shown.name, about["state"], about["num_ranks"], shown.run.series)


def _found(asked: Mapping[str, Any], runs: conditions.Runs) -> Outcome:
    """Return which of a question's choices these runs measured."""
    return outcome.of_choice(
        Choice(
            question=asked["question"],
            choices=tuple(asked["choices"]),
            right=asked["right"],
            measured=tuple(asked["measured"]),
        ),
        runs,
    )


def _right(asked: Mapping[str, Any], found: Outcome) -> int | None:
    """Return the choice to mark as right: the measured one, or the lesson's where it has no condition."""
    return asked["right"] if found.verdict == "unchecked" else found.happened


def _own_words() -> Html:
    """Return room for the learner's own text: to type before printing, or to write by hand."""
    label = "In my own words"
    room = tag(
        "div",
        class_="own-words",
        contenteditable="true",
        role="textbox",
        aria_multiline="true",
        aria_label=label,
    )
    return tag("div", tag("h3", label), room, class_="own")


def num_right_answers(lesson: Lesson, runs: Runs) -> int:
    """Return how many questions were answered as the runs showed, or as the lesson says where they do not."""
    numbers = {shown.index: _numbers(shown) for shown in _shown(lesson["runs"], runs, 0)}
    return sum(
        question["answer"] is not None
        and question["answer"] == _right_answer(question, _found_of(lesson, number, runs, numbers))
        for number, question in enumerate(lesson["questions"])
    )


def _found_of(lesson: Lesson, number: int, runs: Runs, own: Mapping[int, RunNumbers]) -> Outcome:
    """Return what a lesson's runs and the attempts at a question showed."""
    attempts = [each for each in lesson["attempts"] if each["question"] == number]
    tried = _shown([{"name": each["choice"], "run_id": each["run_id"]} for each in attempts], runs, 0)
    together: dict[int | str, RunNumbers] = dict(own.items())
    together |= {shown.name: _numbers(shown) for shown in tried}
    return _found(lesson["questions"][number], together)


def _right_answer(question: Mapping[str, Any], found: Outcome) -> int | None:
    """Return the answer to mark; what was not run here is as the lesson says."""
    return question["right"] if found.verdict in ("unchecked", "unmeasured") else found.happened


def is_done(lesson: Lesson, runs: Runs) -> bool:
    """True if the lesson was predicted, its runs have ended, and all its questions are answered."""
    is_answered = all(question["answer"] is not None for question in lesson["questions"])
    return lesson["predicted"] is not None and is_answered and _is_revealed(lesson, runs)


def lesson_id(lesson: Lesson) -> str:
    """Return the id of a lesson's heading."""
    return f"lesson-{lesson['key']}"


def outcome_words(lesson: Lesson, runs: Runs) -> str:
    """Say in a few words how a lesson went."""
    questions = lesson["questions"]
    answered = [each for each in questions if each["answer"] is not None]
    num_right = num_right_answers(lesson, runs)
    answers = f"{num_right} of {len(questions)} questions right"
    if len(answered) < len(questions):
        answers += f", {len(questions) - len(answered)} not answered"
    if lesson["predicted"] is None:
        return f"not predicted; {answers}"
    if not _is_revealed(lesson, runs):
        return f"predicted, not run to the end; {answers}"
    return f"{_outcome(lesson, _shown(lesson['runs'], runs, 0))} {answers[0].upper()}{answers[1:]}."


def _is_revealed(lesson: Lesson, runs: Runs) -> bool:
    """Tell whether all of a lesson's own runs have ended; one that was deleted had."""
    wanted = [each["run_id"] for each in lesson["runs"]]
    return None not in wanted and not any(runs[run_id].is_live for run_id in wanted if run_id in runs)


def _shown(wanted: Sequence[Mapping[str, Any]], runs: Runs, first: int) -> list[Shown]:
    # A run keeps its number where another one was deleted: conditions and pictures name runs by it.
    return [
        Shown(name=each["name"], index=first + number, run=runs[each["run_id"]])
        for number, each in enumerate(wanted)
        if each["run_id"] in runs
    ]


def _prediction(lesson: Lesson, own: Sequence[Shown], *, is_revealed: bool) -> Html:
    asked, predicted = lesson["prediction"], lesson["predicted"]
    is_drawn = asked["kind"] == "curve"
    parts = [tag("h3", "Prediction"), tag("p", inlines(asked["question"]), class_="question")]
    if not is_drawn:
        found = _found(asked, {shown.index: _numbers(shown) for shown in own})
        right = _right(asked, found) if is_revealed and predicted is not None else None
        parts.append(_choices(asked, predicted, right))
    elif predicted is not None:
        parts.append(_drawn_values(asked, predicted))
    if predicted is None:
        parts.append(tag("p", "No prediction was locked.", class_="soft"))
    elif not is_revealed:
        parts.append(tag("p", "The lesson's runs have not all come to their end.", class_="soft"))
    else:
        parts.append(tag("p", _outcome(lesson, own), class_="outcome"))
        if not is_drawn:
            parts += [tag("p", words, class_="soft") for words in found.reasons]
            if right == asked["right"]:
                parts.append(tag("p", inlines(asked["because"]), class_="because"))
    return tag("div", parts, class_="card")


def _outcome(lesson: Lesson, own: Sequence[Shown]) -> str:
    asked, predicted = lesson["prediction"], lesson["predicted"]
    if asked["kind"] == "choice":
        right = _right(asked, _found(asked, {shown.index: _numbers(shown) for shown in own}))
        if right is None:
            return "These runs do not show which prediction was right."
        return (
            "I predicted what happened."
            if predicted == right
            else "Something else happened than I predicted."
        )
    wanted = lesson["runs"][asked["run"]]["run_id"]
    run = next((shown.run for shown in own if shown.run.about["run_id"] == wanted), None)
    measured = (
        curves.EMPTY
        if run is None
        else curves.curve_of(run, asked["curve"], asked["axis"], asked["smoothing"])
    )
    guess = _guess(asked, predicted)
    pairs = [
        (float(y), value)
        for x, y in zip(guess.x, guess.y, strict=True)
        if (value := measured.value_at(float(x))) is not None
    ]
    if not pairs:
        return "Nothing was measured to compare the prediction with."
    distance = sum(abs(y - value) for y, value in pairs) / len(pairs)
    share = distance / (asked["high"] - asked["low"])
    words = next(words for most, words in _CLOSENESS if share < most or most == float("inf"))
    return f"{words}: my curve is {number_words.number(distance, 2)} away on average."


def _guess(asked: Mapping[str, Any], values: Sequence[float]) -> Curve:
    return Curve(x=np.linspace(0.0, asked["until"], len(values)), y=np.array(values, np.float64))


def _drawn_values(asked: Mapping[str, Any], values: Sequence[float]) -> Html:
    guess = _guess(asked, values)
    pairs = "; ".join(
        f"{number_words.number(float(y), 3)} at {number_words.number(float(x), 3)}"
        for x, y in zip(guess.x, guess.y, strict=True)
    )
    over = curves.AXES.get(asked["axis"], asked["axis"])
    return tag("p", f"My drawn {curves.words_of(asked['curve'])}, over {over}: {pairs}.", class_="soft")


def _choices(asked: Mapping[str, Any], chosen: int | None, right: int | None) -> Html:
    """Return the choices of a question.

    Args:
        right: the choice that is marked as right; None: none is, because it is not known or not answered.
    """
    items = []
    for number, words in enumerate(asked["choices"]):
        is_chosen, is_right = number == chosen, number == right
        said = _OUTCOMES.get((is_right, is_chosen))
        state = ("right" if is_right else "wrong") if said and right is not None else None
        items.append(
            tag(
                "li",
                tag("span", inlines(words)),
                tag("span", said, class_="said") if said else None,
                data_state=state,
                data_chosen=is_chosen,
            )
        )
    return tag("ul", items, class_="choices")


def _measured(lesson: Lesson, runs: Sequence[Shown], max_points: int) -> Html:
    if not runs:
        return tag("p", "None of its runs was started, or they were deleted.", class_="soft")
    curve_pictures = [picture for picture in lesson["pictures"] if picture["curve"]]
    tables = [picture for picture in lesson["pictures"] if picture["numbers"]]
    links = [
        joined(
            [
                " · " if number else None,
                tag("a", name_of(shown.name), href=f"#run-{shown.run.about['run_id']}"),
            ]
        )
        for number, shown in enumerate(runs)
    ]
    return joined(
        [
            [instruments.drawn(picture, runs) for picture in lesson["pictures"]],
            pictures.grid(_charts(lesson, curve_pictures, runs, max_points)),
            [pictures.table(runs, each["numbers"], inlines(each["caption"])) for each in tables]
            or pictures.table(runs, _COMPARED),
            tag("p", "The runs: ", links, class_="soft screen-only"),
        ]
    )


def _charts(
    lesson: Lesson, shown: Sequence[Mapping[str, Any]], runs: Sequence[Shown], max_points: int
) -> list[Html | None]:
    """Return the charts of a lesson, the drawn prediction over the one that it is of, or by itself."""
    asked, predicted = lesson["prediction"], lesson["predicted"]
    is_drawn = asked["kind"] == "curve" and predicted is not None
    guess = _guess(asked, predicted) if is_drawn else None
    wanted = [(each["curve"], each["axis"], each["smoothing"], each) for each in shown]
    if is_drawn and (asked["curve"], asked["axis"]) not in [each[:2] for each in wanted]:
        wanted.insert(0, (asked["curve"], asked["axis"], asked["smoothing"], {}))
    return [
        pictures.of_curve(
            runs,
            curve,
            axis,
            max_points,
            smoothing=smoothing,
            guess=guess if is_drawn and (asked["curve"], asked["axis"]) == (curve, axis) else None,
            is_wide=number == 0 or (number == len(wanted) - 1 and number % 2 == 1),
            about=about,
        )
        for number, (curve, axis, smoothing, about) in enumerate(wanted)
    ]


def _question(lesson: Lesson, number: int, found: Outcome) -> Html:
    question = lesson["questions"][number]
    answer, right = question["answer"], _right_answer(question, found)
    tried = [each["choice"] for each in lesson["attempts"] if each["question"] == number]
    parts = [
        tag("p", inlines(question["question"]), class_="question"),
        _choices(question, answer, right if answer is not None else None),
    ]
    if tried:
        parts.append(tag("p", "What I ran to find out: ", joined(_listed(tried)), ".", class_="soft"))
    if answer is None:
        parts.append(tag("p", "Not answered.", class_="soft"))
    else:
        parts += [tag("p", words, class_="soft") for words in found.reasons]
        if right == question["right"]:
            parts.append(tag("p", inlines(question["because"]), class_="because"))
    return tag("div", parts, class_="card")


def _listed(names: Sequence[str]) -> list[Html]:
    return [
        joined([", " if number else None, name_of(name)]) for number, name in enumerate(dict.fromkeys(names))
    ]
