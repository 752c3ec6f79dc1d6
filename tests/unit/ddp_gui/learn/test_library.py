"""Lessons from several folders: bundled ones and those of a teacher; broken files are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import Lesson
from ddp_gui.server import LESSONS
from tests.unit.ddp_gui.learn.lessons import LESSON, changed
from trainers.contract import config

pytestmark = pytest.mark.unit


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
