"""Tests of who may run a script, and of the names that a request may contain."""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile, NotAllowedError
from ddp_gui.script import script_api
from ddp_gui.script.script_api import ScriptApi, ScriptRules
from tests.unit.class_of import ANN, EVE
from trainers.contract import config as config_module
from trainers.contract import rundir
from trainers.contract.config import ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import sandbox
from trainers.engines.ssh.register import engine_of

CLASS = ScriptRules(has_login=True, is_one_users=False)


@pytest.fixture
def settings(tmp_path: Path) -> ClassSettingsFile:
    return ClassSettingsFile(tmp_path)


@pytest.fixture(autouse=True)
def sandbox_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "obstacle", lambda: None)


def test_a_student_needs_a_teachers_permission(settings: ClassSettingsFile) -> None:
    with rights.acting_as(EVE):
        CLASS.check(settings)
    with rights.acting_as(ANN):
        with pytest.raises(NotAllowedError, match="your teacher has not allowed"):
            CLASS.check(settings)
        settings.change(students_run_scripts=True)
        CLASS.check(settings)
    with pytest.raises(NotAllowedError, match="without logins"):
        ScriptRules(has_login=False, is_one_users=False).check(settings)


def test_no_login_without_a_sandbox(settings: ClassSettingsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "obstacle", lambda: "bubblewrap (bwrap) is not installed on this machine")
    with rights.acting_as(EVE), pytest.raises(NotAllowedError, match="bwrap"):
        CLASS.check(settings)


@pytest.mark.parametrize("name", ["path", "python", "folder"])
def test_with_logins_nothing_of_the_machine_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '/etc'"):
        script_api.refuse_paths(CLASS, {name: "/etc"})
    script_api.refuse_paths(ScriptRules(has_login=False, is_one_users=True), {name: "/etc"})


def test_a_script_is_resumed_by_who_may_start_it(settings: ClassSettingsFile, tmp_path: Path) -> None:
    def make(**more: str) -> RunDirectory:
        config = config_module.parse({"model": "script", "dataset": "script", "script": "a.py", **more})
        return rundir.create(tmp_path, config)

    api = ScriptApi(SimpleNamespace(class_settings=settings), SimpleNamespace(), CLASS)
    with rights.acting_as(ANN), pytest.raises(NotAllowedError, match="your teacher has not allowed"):
        api.plan_again(make())
    with rights.acting_as(EVE):
        with pytest.raises(NotAllowedError, match="without a sandbox"):
            api.plan_again(make())
        with pytest.raises(ConfigError, match="folder is '/etc'"):
            api.plan_again(make(script_folder="/etc"))


@pytest.mark.parametrize(
    ("values", "is_shared", "refused"),
    [
        (
            {"script_start": "python", "num_nodes": 2},
            True,
            "the launcher python starts the ranks on one machine only",
        ),
        ({"script_python": "/opt/python"}, False, "share no folder with this machine"),
        ({"script_folder": "/data"}, False, "share no folder with this machine"),
    ],
)
def test_what_a_script_cannot_do_elsewhere_is_refused_with_the_reason(
    values: dict[str, Any], is_shared: bool, refused: str, tmp_path: Path
) -> None:
    site = tmp_path / "site.toml"
    folder = "" if is_shared else 'shared = false\nfolder = "/home/ann/ddp-web"\n'
    site.write_text(f'[ssh]\nhosts = ["pc1", "pc2"]\n{folder}')
    config = config_module.parse({"model": "script", "dataset": "script", "script": "a.py", **values})
    (problem,) = engine_of(site).check(config)  # no host is asked
    assert problem.field in values and refused in problem.allowed


def zipped(files: dict[str, bytes]) -> str:
    """Return a zip with these files in base64."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return base64.b64encode(content.getvalue()).decode()


def test_a_zip_loses_the_folder_around_all_and_hidden_folders_and_is_no_bomb() -> None:
    files = script_api.files_of_zip(
        zipped({"mine/train.py": b"1", "mine/lib/net.py": b"2", "__MACOSX/mine/train.py": b"3"})
    )
    assert files == {"train.py": b"1", "lib/net.py": b"2"}
    with pytest.raises(ValueError, match="more than 5 MiB"):
        script_api.files_of_zip(zipped({"train.py": bytes(50 * 2**20)}))
