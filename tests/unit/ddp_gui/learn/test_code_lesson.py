"""Lessons in code: their files, their progress with an account, and their part of the lab report."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddp_gui.learn import code_lesson
from ddp_gui.learn.code_checks import CHECKS, HINTS, Wanted, check
from ddp_gui.learn.code_facts import Facts, Printed, RankFacts
from ddp_gui.learn.code_lesson import CodeLibrary
from ddp_gui.learn.lesson_file import LessonError
from ddp_gui.learn.report import document, request
from ddp_gui.server import LESSONS

pytestmark = pytest.mark.unit
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
    facts = Facts(ranks=(RankFacts(), RankFacts()), state="failed", code="hang", error="The run hangs.")
    first, *others = check(facts, Wanted(epochs=1), list(CHECKS))
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
