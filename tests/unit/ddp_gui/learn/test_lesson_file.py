"""Lesson files, also those in code: parsed, or refused with the line of the error."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddp_gui.learn import code_lesson, lesson_file
from ddp_gui.learn.code_checks import CHECKS, HINTS, Requirements, check
from ddp_gui.learn.code_facts import Printed, RankFacts, RunFacts
from ddp_gui.learn.code_lesson import CodeLibrary
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import Lesson
from ddp_gui.learn.lesson_file import LessonError
from ddp_gui.learn.report import document, request
from ddp_gui.server import LESSONS
from tests.unit.ddp_gui.learn.lessons import LESSON, changed, line_of
from trainers.contract import config

MEASURED = 'because = "Both see the same."'
RIGHT = 'right = 1\nbecause = "Both'
CONFIG = 'config = { model = "mlp", dataset = "digits", nproc = '
SUM = 'because = "The [sum]'


def test_a_lesson_sends_commands_to_a_run() -> None:
    slow = '[[runs.commands]]\nname = "slow_rank"\nat_step = 5\nrank = 1\ndelay_ms = 20\n'
    slow = f"max_steps = 40 }}\n\n{slow}\n[prediction]"
    text = changed("max_steps = 40 }\n\n[prediction]", slow)
    (command,) = lesson_file.parse("slow", text).runs[1].commands
    assert (command.at_step, command.endpoint, command.values) == (5, "slow_rank", (1, 20))
    with pytest.raises(LessonError, match="delay_ms: delay_ms is 2000; allowed:") as refused:
        lesson_file.parse("slow", text.replace("delay_ms = 20", "delay_ms = 2000"))
    assert refused.value.line == line_of("delay_ms", text)


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ('title = "One and two"\n', "", "+++", "title is missing"),
        (
            MEASURED,
            "measured = []\n" + MEASURED,
            "measured",
            "prediction.measured is []; allowed: a list of 2",
        ),
        (MEASURED, 'measured = ["", ""]\n' + MEASURED, "measured", "choice 1 is the correct one, but has no"),
        ("minutes = 5", "minutes = 0", "minutes", "minutes is 0; allowed: a whole number from 1"),
        ("minutes = 5", "minutes = ", "minutes", "the header is not TOML"),
        ("minutes = 5", "minuets = 5", "minuets", "'minuets' is not a field; allowed: title, minutes"),
        ('name = "two ranks"', 'name = ""', 'name = ""', "runs[1].name is ''; allowed: a text"),
        ("nproc_per_node = 2", "nproc = 2", CONFIG, "config: nproc is 2; allowed: no field of this name"),
        (RIGHT, RIGHT.replace("1", "2"), "right = 2", "right is 2; allowed: a whole number from 0 to 1"),
        ("[all-reduce](term:all-reduce)", "[sum](term:nonsense)", SUM, "the glossary has no term 'nonsense'"),
        ('["loss", "took"]', '["luck"]', "numbers", "numbers[0] is 'luck'; allowed: one of loss"),
        ("## See\n", "## Look\n", "## Look", "a heading is '## Look'; allowed, once each: ## Before"),
        ("## Explain\n\nBecause of `loss.backward()`.\n", "", "## See", "the part ## Explain is missing"),
        (
            "Two ranks share",
            "<script>alert(1)</script>\n\nTwo",
            "<script>",
            "an element of the kind 'html block'",
        ),
        ("Two ranks share", "![](http://x.org/a.png) share", "![](http", "an element of the kind 'image'"),
        (
            "- Look here.",
            "- [there](javascript:alert(1))",
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
    with pytest.raises(LessonError, match="allowed: lower-case letters"):
        lesson_file.parse("What? Why!", LESSON)


def test_a_broken_file_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    (tmp_path / "02-second.md").write_text(LESSON)
    (tmp_path / "01-first.md").write_text(LESSON)
    (tmp_path / "03-third.md").write_text(changed("minutes = 5", "minutes = -1"))
    (tmp_path / "notes.txt").write_text("no lesson")
    found, broken = Library([tmp_path]).read()
    assert [lesson.name for lesson in found] == ["first", "second"]
    (fault,) = broken
    assert fault.file == "03-third.md" and fault.words.startswith("line 3: minutes is -1")


def test_our_own_lessons_are_whole_and_ask_for_one_more_run() -> None:
    found, broken = Library([LESSONS]).read()
    assert broken == [] and len(found) == 12
    for lesson in found:
        assert len(lesson.questions) == 2, lesson.name
        assert sum(question.attempt is not None for question in lesson.questions) == 1, lesson.name


@pytest.mark.parametrize("lesson", Library([LESSONS]).read()[0], ids=lambda lesson: lesson.name)
def test_our_own_lessons_run_on_two_cpu_ranks(lesson: Lesson) -> None:
    attempts = [question.attempt for question in lesson.questions if question.attempt is not None]
    changes = [(attempt.run, each) for attempt in attempts for each in attempt.choices.values()]
    raw = [run.config for run in lesson.runs] + [{**lesson.runs[run].config, **each} for run, each in changes]
    configs = [config.parse(each) for each in raw]
    for made in configs:
        assert made.world_size <= 2 and made.device == "cpu", made
        # Learners wait for it, so there is no evaluation in between, and a hang is shorter than by default.
        is_to_hang = made.mistake in ("rank0_validates_alone", "rank0_saves_alone", "uneven_batches")
        assert not is_to_hang or made.hang_timeout_s <= 5, made
    names = {run.expect for run in lesson.runs}
    assert names == {"finished"} or any(made.mistake != "none" for made in configs)


FIRST = LESSONS / "code" / "13-two-ranks.md"


def test_our_own_lessons_are_whole() -> None:
    found, broken = CodeLibrary([LESSONS]).read()
    assert broken == [] and len(found) == 6
    for lesson in found:
        compile(lesson.script, lesson.name, "exec")
        compile(lesson.solution, lesson.name, "exec")
        assert lesson.checks[0] == "ends" and lesson.script != lesson.solution
        assert all(lesson.hints[code] for code in HINTS)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"ends", ', '"begins", ', "line 5: checks"),
        ("epochs = 4", "epochs = 0", "line 6: epochs"),
        ("not_averaged = [", "nothing = [", "line 10: .*nothing is 'nothing'; allowed: one of"),
        ("## Solution", "## Answer", "a heading is '## Answer'"),
        (
            "```python\nimport torch\nfrom torch import nn\n",
            "Text.\n\n```python\nimport torch\n",
            "one block of code",
        ),
    ],
)
def test_a_broken_file_is_refused_with_its_line(old: str, new: str, words: str) -> None:
    text = FIRST.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(LessonError, match=words):
        code_lesson.parse("two-ranks", text.replace(old, new, 1))


def test_no_check_is_reached_after_one_that_fails() -> None:
    facts = RunFacts(ranks=(RankFacts(), RankFacts()), state="failed", code="hang", error="The run hangs.")
    first, *others = check(facts, Requirements(epochs=1), list(CHECKS))
    assert first.finding is not None and first.finding.code == "hang"
    assert others and not any(each.is_reached or each.finding for each in others)


def test_a_long_printed_word_is_read_in_no_time() -> None:
    began = time.process_time()
    for line in ("loss" + "a" * 290 + "1", "loss" * 75, "loss a1" * 42, "loss.1 " * 42):
        Printed(line=line, num_losses=1, num_criteria=1).numbers("loss")
    assert time.process_time() - began < 5.0, "formerly half an hour"


def test_the_report_has_the_code_as_text() -> None:
    asked = {"lesson": "two-ranks", "run_id": "a-run-1", "num_tries": 300, "is_solution_shown": True}
    (done,) = request.parse({"code_lessons": [asked]}).code_lessons
    assert (done.run_id, done.num_tries, done.is_solution_shown) == ("a-run-1", 300, True)
    checks = [{"label": "It ends", "outcome": "failed", "words": "It hangs <here>."}]
    drawn = document.draw_code_lesson(
        {
            "title": "Two ranks", "summary": "", "num_tries": 3, "is_solution_shown": True,
            "code": "if a < b: pass", "result": {"is_over": True, "is_passed": False, "checks": checks},
        }
    )  # fmt: skip
    assert "if a &lt; b: pass" in drawn and "It hangs &lt;here&gt;." in drawn
    assert "Not right yet, after 3 runs; the solution was shown." in drawn


def test_a_teacher_s_lesson_replaces_ours(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    text = FIRST.read_text(encoding="utf-8").replace("minutes = 10", "minutes = 99")
    (tmp_path / "code" / "01-two-ranks.md").write_text(text)
    assert CodeLibrary([LESSONS, tmp_path]).find("two-ranks").minutes == 99


def test_only_a_script_that_starts_its_ranks_itself_is_started_without_torchrun() -> None:
    with_process = """
from multiprocessing import Process
def run(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
for rank in range(2):
    Process(target=run, args=(rank,)).start()
"""
    first = code_lesson.read(FIRST)
    spawned = with_process.replace("Process(target=run, args=(rank,)).start()", "mp.spawn(run, nprocs=2)")
    codes = (with_process, spawned, first.script, first.solution)
    assert [code_lesson.starts_ranks(code) for code in codes] == [True, True, False, False]
