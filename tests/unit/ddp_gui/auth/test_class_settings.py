"""Tests of the class settings: stored, reloaded when they change, restrictive if unreadable."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import STRICTEST, ClassSettings, ClassSettingsFile, Person
from ddp_gui.runs.run_list_routes import RunAdminApi


def test_settings_are_kept_and_seen_by_others(tmp_path: Path) -> None:
    mine, yours = ClassSettingsFile(tmp_path), ClassSettingsFile(tmp_path)
    assert yours.read() == ClassSettings()
    assert mine.change(everyone_sees=False) == ClassSettings(everyone_sees=False)
    assert yours.read() == ClassSettings(everyone_sees=False)


@pytest.mark.parametrize("text", ["", "[1]", '{"everyone_sees": "no"}', '{"other": true}', "\x00"])
def test_a_file_that_makes_no_sense_shows_nothing_by_mistake(tmp_path: Path, text: str) -> None:
    file = ClassSettingsFile(tmp_path)
    file.path.parent.mkdir()
    file.path.write_text(text)
    assert file.read() == STRICTEST


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"everyone_sees": 1}, "everyone_sees is 1; allowed: true or false"),
        ({"all": True}, "'all' is not a field"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = ClassSettingsFile(tmp_path)
    with pytest.raises(ValueError, match=words):
        file.change(**changes)
    assert not file.path.exists()


def test_only_a_teacher_changes_them(tmp_path: Path) -> None:
    store = SimpleNamespace(class_settings=ClassSettingsFile(tmp_path), runs_dir=tmp_path)
    api = RunAdminApi(store)  # type: ignore[arg-type]
    with rights.asked_by(Person(name="ann", role="student")):
        assert api.class_settings()["everyone_sees"] is True
        with pytest.raises(Exception, match="only a teacher can change the settings"):
            api.class_settings({"everyone_sees": False})
    assert api.class_settings()["everyone_sees"] is True
    assert api.class_settings({"everyone_sees": False})["everyone_sees"] is False
