"""Tests of who may run a script, and of the names that a request may contain."""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile, NotAllowedError, Person
from ddp_gui.script import script_api
from ddp_gui.script.script_api import ScriptRules
from trainers.contract.config import ConfigError
from trainers.engines.local import sandbox

TEACHER, STUDENT = Person(name="tea", role="teacher"), Person(name="stu", role="student")
CLASS = ScriptRules(has_login=True, is_one_users=False)


@pytest.fixture
def settings(tmp_path: Path) -> ClassSettingsFile:
    return ClassSettingsFile(tmp_path)


@pytest.fixture(autouse=True)
def sandbox_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "obstacle", lambda: None)


def test_a_page_of_one_user_runs_scripts(settings: ClassSettingsFile) -> None:
    ScriptRules(has_login=False, is_one_users=True).check(settings)


def test_a_page_that_starts_runs_elsewhere_runs_none(settings: ClassSettingsFile) -> None:
    with pytest.raises(NotAllowedError, match="own machine only"):
        ScriptRules(has_login=False, is_one_users=True, is_local=False).check(settings)


def test_a_page_open_to_others_without_logins_runs_none(settings: ClassSettingsFile) -> None:
    with pytest.raises(NotAllowedError, match="without logins"):
        ScriptRules(has_login=False, is_one_users=False).check(settings)


def test_a_student_needs_a_teachers_permission(settings: ClassSettingsFile) -> None:
    with rights.asked_by(TEACHER):
        CLASS.check(settings)
    with rights.asked_by(STUDENT):
        with pytest.raises(NotAllowedError, match="your teacher has not allowed"):
            CLASS.check(settings)
        settings.change(students_run_scripts=True)
        CLASS.check(settings)


def test_without_a_sandbox_nobody_with_a_login_runs_scripts(
    settings: ClassSettingsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "obstacle", lambda: "bubblewrap (bwrap) is not installed on this machine")
    with rights.asked_by(TEACHER), pytest.raises(NotAllowedError, match="bwrap"):
        CLASS.check(settings)


@pytest.mark.parametrize("name", ["path", "python", "folder"])
def test_with_logins_nothing_of_the_machine_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '/etc'"):
        script_api.refuse_paths(CLASS, {name: "/etc"})
    script_api.refuse_paths(ScriptRules(has_login=False, is_one_users=True), {name: "/etc"})


def zipped(files: dict[str, bytes]) -> str:
    """Return a zip with these files in base64."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return base64.b64encode(content.getvalue()).decode()


def test_a_zip_loses_the_folder_around_all_and_hidden_folders() -> None:
    files = script_api.files_of_zip(
        zipped({"mine/train.py": b"1", "mine/lib/net.py": b"2", "__MACOSX/mine/train.py": b"3"})
    )
    assert files == {"train.py": b"1", "lib/net.py": b"2"}


def test_a_zip_bomb_is_refused_by_what_it_unpacks_to() -> None:
    with pytest.raises(ValueError, match="more than 5 MiB"):
        script_api.files_of_zip(zipped({"train.py": bytes(50 * 2**20)}))


@pytest.mark.parametrize("text", ["", "not base64!", base64.b64encode(b"PK nothing").decode()])
def test_what_is_no_zip_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"zip|base64"):
        script_api.files_of_zip(text)
