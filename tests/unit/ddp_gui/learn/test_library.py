"""Lessons of several folders: ours and a teacher's, broken ones named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui.learn.library import Library
from ddp_gui.server import LESSONS
from tests.unit.ddp_gui.learn.lessons import LESSON, changed

pytestmark = pytest.mark.unit


def test_a_broken_file_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    (tmp_path / "02-second.md").write_text(LESSON)
    (tmp_path / "01-first.md").write_text(LESSON)
    (tmp_path / "03-third.md").write_text(changed("minutes = 5", "minutes = -1"))
    (tmp_path / "notes.txt").write_text("no lesson")
    found, broken = Library([tmp_path]).read()
    assert [lesson.name for lesson in found] == ["first", "second"]
    (fault,) = broken
    assert fault.file == "03-third.md" and fault.words.startswith("line 3: minutes: it is -1")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path, library = tmp_path / "a.md", Library([tmp_path])
    path.write_text(changed("minutes = 5", "minutes = nonsense"))
    assert library.read()[0] == []
    path.write_text(LESSON)
    assert [lesson.minutes for lesson in library.read()[0]] == [5]
    path.write_text(changed("minutes = 5", "minutes = 12"))
    assert library.find("a").minutes == 12
    path.unlink()
    with pytest.raises(ValueError, match="there is no lesson 'a'"):
        library.find("a")


def test_of_two_lessons_of_one_name_the_teachers_counts(tmp_path: Path) -> None:
    for folder, minutes in (("ours", 5), ("theirs", 9)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text(changed("minutes = 5", f"minutes = {minutes}"))
    assert Library([tmp_path / "ours", tmp_path / "theirs"]).find("a").minutes == 9


def test_our_own_lessons_are_whole_and_ask_for_one_more_run() -> None:
    found, broken = Library([LESSONS]).read()
    assert broken == [] and found
    for lesson in found:
        assert len(lesson.questions) == 2, lesson.name
        assert sum(question.attempt is not None for question in lesson.questions) == 1, lesson.name
