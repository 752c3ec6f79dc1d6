"""A lesson file is parsed into a lesson, or its error is reported with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui.learn import lesson_file
from ddp_gui.learn.lesson import Choice, DrawnCurve
from ddp_gui.learn.lesson_file import LessonError
from tests.unit.ddp_gui.learn.lessons import LESSON, changed, line_of

pytestmark = pytest.mark.unit
DRAWN = """\
[prediction]
question = "Draw it."
curve = "loss"
axis = "samples"
run = 1
until = 1000
low = 0
high = 2.5
"""
MEASURED = 'because = "Both see the same."'
CHOSEN = LESSON[LESSON.index("[prediction]") : LESSON.index("\n[[pictures]]")]


def test_a_whole_lesson_is_read() -> None:
    lesson = lesson_file.parse("one-and-two", LESSON)
    assert (lesson.title, lesson.minutes, [run.name for run in lesson.runs]) == (
        "One and two",
        5,
        ["one rank", "two ranks"],
    )
    assert lesson.runs[1].config["nproc_per_node"] == 2
    assert isinstance(lesson.prediction, Choice) and lesson.prediction.right == 1
    assert lesson.prediction.choices == (["the first"], [["b", ["neither"]]])
    first, second = lesson.pictures
    assert (first.curve, first.axis, first.marks[0].words) == ("loss", "samples", "here they part")
    assert second.numbers == ("loss", "took")
    assert lesson.questions[0].attempt is None
    assert lesson.questions[0].because == ["The ", ["term", "all-reduce", ["all-reduce"]], " averages."]
    attempt = lesson.questions[1].attempt
    assert attempt is not None and attempt.choices["seed 2"] == {"seed": 2}
    assert lesson.before == [["p", ["Two ranks share a ", ["term", "global batch", ["batch"]], "."]]]
    assert lesson.see == [["ul", [[["p", ["Look here."]]]]]]
    assert lesson.explain == [["p", ["Because of ", ["code", "loss.backward()"], "."]]]


def test_answers_and_pictures_have_conditions_and_what_to_look_at() -> None:
    text = changed(MEASURED, f'measured = ["loss(0) < loss(1)", "loss(0) == loss(1)"]\n{MEASURED}')
    text = text.replace('caption = "The losses."', 'see = "Who is lower?"\ncaption = "The losses."')
    text = text.replace(
        'because = "It draws others."',
        'because = "It draws others."\nmeasured = ["", "loss(\'seed 2\') != loss(1)"]',
    )
    lesson = lesson_file.parse("measured", text.replace("## See\n\n- Look here.\n\n", ""))
    assert isinstance(lesson.prediction, Choice)
    assert lesson.prediction.measured == ("loss(0) < loss(1)", "loss(0) == loss(1)")
    assert lesson.questions[1].measured == ("", "loss('seed 2') != loss(1)")
    assert lesson.pictures[0].see == ["Who is lower?"] and lesson.see == []
    with pytest.raises(LessonError, match="the part ## See is missing"):
        lesson_file.parse("measured", changed("## See\n\n- Look here.\n\n", ""))


def test_a_curve_can_be_predicted() -> None:
    lesson = lesson_file.parse("drawn", changed(CHOSEN, DRAWN))
    assert isinstance(lesson.prediction, DrawnCurve)
    assert (lesson.prediction.run, lesson.prediction.until, lesson.prediction.high) == (1, 1000.0, 2.5)


@pytest.mark.parametrize(
    ("axis", "asked", "smoothing", "predicted"),
    [("step", 400, 500, 20), ("step", 1, 0, 20), ("samples", 400, 500, 0), ("time", 4, 5, 0)],
)
def test_charts_and_the_drawn_prediction_are_smoothed_in_the_unit_of_the_axis(
    axis: str, asked: int, smoothing: float, predicted: float
) -> None:
    chart = f'axis = "{axis}"\nsmoothing = {asked}'
    text = changed(CHOSEN, DRAWN).replace('axis = "samples"\n\n', f"{chart}\n\n")
    lesson = lesson_file.parse("spans", text.replace('axis = "samples"', f'axis = "{axis}"'))
    assert lesson.pictures[0].smoothing == smoothing, "one of the spans that the page offers"
    assert isinstance(lesson.prediction, DrawnCurve) and lesson.prediction.smoothing == predicted


def test_pictures_of_each_kind_are_read() -> None:
    kinds = 'bars = "wait"\n\n[[pictures]]\ncaption = "b"\nwaterfall = 1\n\n[[pictures]]\ncaption = "c"\n'
    lesson = lesson_file.parse(
        "pictures", changed('numbers = ["loss", "took"]', f'{kinds}instrument = "some"\nrun = 1')
    )
    _, bars, waterfall, instrument = lesson.pictures
    assert (bars.bars, waterfall.waterfall, instrument.instrument, instrument.run) == ("wait", 1, "some", 1)


def test_a_lesson_sends_commands_to_a_run() -> None:
    slow = '[[runs.commands]]\nname = "slow_rank"\nat_step = 5\nrank = 1\ndelay_ms = 20\n'
    slow = f"max_steps = 40 }}\n\n{slow}\n[prediction]"
    text = changed("max_steps = 40 }\n\n[prediction]", slow)
    (command,) = lesson_file.parse("slow", text).runs[1].commands
    assert (command.at_step, command.endpoint, command.values) == (5, "slow_rank", (1, 20))
    with pytest.raises(LessonError, match="delay_ms: delay_ms is 2000, but allowed is") as refused:
        lesson_file.parse("slow", text.replace("delay_ms = 20", "delay_ms = 2000"))
    assert refused.value.line == line_of("delay_ms", text)


def test_a_run_may_be_meant_to_fail() -> None:
    hangs = 'name = "two ranks"\nexpect = "failed"'
    text = changed('name = "two ranks"', hangs).replace(
        "nproc_per_node = 2,", "nproc_per_node = 2, hang_timeout_s = 4,"
    )
    assert [run.expect for run in lesson_file.parse("hang", text).runs] == ["finished", "failed"]


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ('title = "One and two"\n', "", "+++", "title is missing"),
        (
            MEASURED,
            "measured = []\n" + MEASURED,
            "measured",
            "prediction.measured is [], but allowed is: a list of 2 to 6, each a text",
        ),
        (
            MEASURED,
            'measured = ["", ""]\n' + MEASURED,
            "measured",
            "measured: choice 1 is the right one, and has no",
        ),
        (
            MEASURED,
            'measured = ["", "loss(2) < 1"]\n' + MEASURED,
            "measured",
            "measured: there is no run 2; allowed is: 0 to 1",
        ),
        (
            'numbers = ["loss", "took"]',
            'finding = "They differ."\nnumbers = ["loss"]',
            '[[pictures]]\ncaption = "What was',
            "pictures[1].when is missing",
        ),
        (
            'numbers = ["loss", "took"]',
            'when = "loss(0) < 1"\nnumbers = ["loss"]',
            "when",
            "when: it is the condition of a finding, which is missing",
        ),
        (
            'numbers = ["loss", "took"]',
            'finding = "They differ."\nwhen = "luck(0) < 1"\nnumbers = ["loss"]',
            "when",
            "when: 'luck' is not a quantity",
        ),
        ("minutes = 5", "minutes = 0", "minutes", "minutes is 0, but allowed is: a whole number from 1"),
        ("minutes = 5", "minutes = true", "minutes", "minutes is True"),
        ("minutes = 5", "minutes = ", "minutes", "the header is not TOML"),
        ("minutes = 5", "minuets = 5", "minuets", "'minuets' is not a field, but allowed is: title, minutes"),
        ('summary = "', 'sumary = "a"\nsummary = "', "sumary", "'sumary' is not a field"),
        ('name = "two ranks"', 'name = ""', 'name = ""', "runs[1].name is '', but allowed is: a text"),
        (
            "nproc_per_node = 2",
            "nproc_per_nod = 2",
            'config = { model = "mlp", dataset = "digits", nproc_per_nod ',
            "config: nproc_per_nod is 2, but allowed is: no field of this name",
        ),
        (
            'right = 1\nbecause = "Both',
            'right = 2\nbecause = "Both',
            "right = 2",
            "prediction.right is 2, but allowed is: a whole number from 0 to 1",
        ),
        (
            'choices = ["so", "not so"]',
            'choices = ["so"]',
            'choices = ["so"]',
            "questions[0].choices is ['so'], but allowed is: a list of 2 to 6",
        ),
        (
            '"The [all-reduce](term:all-reduce) averages."',
            '"The [sum](term:nonsense) averages."',
            'because = "The [sum]',
            "because: the glossary has no term 'nonsense'",
        ),
        (
            '"It draws others."',
            '"<b>bold</b>"',
            'because = "<b>',
            "because: there is a part of the kind 'html inline'",
        ),
        (
            'numbers = ["loss", "took"]',
            'numbers = ["luck"]',
            "numbers",
            "numbers[0] is 'luck', but allowed is: one of loss",
        ),
        (
            'axis = "samples"',
            'axis = "colour"',
            "axis",
            "axis is 'colour', but allowed is: one of step, samples, time",
        ),
        ('curve = "loss"', 'curve = "luck"', "curve", "curve is 'luck', but allowed is: one of loss"),
        (
            'numbers = ["loss", "took"]',
            'numbers = ["loss"]\nbars = "memory"',
            'caption = "What was',
            "caption: a picture has one of curve, numbers, bars, waterfall, instrument",
        ),
        (
            'numbers = ["loss", "took"]',
            "waterfall = 0",
            "waterfall",
            "waterfall is 0, but allowed is: a whole number from 1 to 1",
        ),
        (
            'name = "two ranks"',
            'name = "two ranks"\nexpect = "failed"',
            'config = { model = "mlp", dataset = "digits", nproc_per_node = 2',
            "config: a run expected to fail must have on_hang end, and a hang_timeout_s of at most 10",
        ),
        ("x = 100", 'x = "a"', 'x = "a"', "marks[0].x is 'a', but allowed is: a number"),
        (
            "{ seed = 1 }",
            "{ seed = -1 }",
            'choices = { "seed 1"',
            "questions[1].attempt.choices.seed 1: seed is -1",
        ),
        ("run = 1\n", "run = 2\n", "run = 2", "attempt.run is 2, but allowed is: a whole number from 0 to 1"),
        ("## See\n", "## Look\n", "## Look", "a heading is '## Look', but allowed are, once each: ## Before"),
        ("## Explain\n\nBecause of `loss.backward()`.\n", "", "## See", "the part ## Explain is missing"),
        ("## Before\n", "Hello.\n\n## Before\n", "Hello.", "there is text before the heading ## Before"),
        (
            "Two ranks share",
            "<script>alert(1)</script>\n\nTwo ranks share",
            "<script>",
            "there is a part of the kind 'html block'",
        ),
        (
            "Two ranks share",
            "![](http://x.org/a.png) share",
            "![](http",
            "there is a part of the kind 'image'",
        ),
        (
            "- Look here.",
            "- Look [here](term:global batch).",
            "- Look [",
            "a link is invalid",
        ),
        (
            "- Look here.",
            "- Look.\n- [there](javascript:alert(1))",
            "- [there]",
            "a link goes to 'javascript:alert(1)'",
        ),
    ],
)
def test_whatever_is_wrong_is_said_with_its_line(old: str, new: str, at: str, words: str) -> None:
    text = changed(old, new)
    with pytest.raises(LessonError) as refused:
        lesson_file.parse("broken", text)
    assert words in str(refused.value)
    assert refused.value.line == line_of(at, text), str(refused.value)


def test_the_line_of_a_file_that_is_no_text_is_said_and_a_huge_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "01-bytes.md"
    path.write_bytes(b"+++\ntitle = '\xff'\n+++\n")
    with pytest.raises(LessonError, match=r"line 2: the file is not UTF-8 text"):
        lesson_file.read(path)
    path.write_bytes(b"+++\n" + b"#" * lesson_file.MAX_BYTES)
    with pytest.raises(LessonError, match=r"line 1: the file has more than 200,000 bytes"):
        lesson_file.read(path)


@pytest.mark.parametrize(
    ("file", "name"), [("04-global-batch.md", "global-batch"), ("mine.md", "mine"), ("7 seeds.md", "seeds")]
)
def test_a_lesson_is_called_as_its_file_without_the_number(file: str, name: str) -> None:
    assert lesson_file.name_of(Path(file)) == name


def test_a_name_that_is_no_part_of_an_address_is_refused() -> None:
    with pytest.raises(LessonError, match="allowed are: small letters"):
        lesson_file.parse("What? Why!", LESSON)
