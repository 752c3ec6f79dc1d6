"""Tests of who may run a script, and of the names that a request may contain."""

from __future__ import annotations

import base64
import io
import shlex
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile, NotAllowedError, Person
from ddp_gui.devices.capacity import Machine
from ddp_gui.launch import launcher
from ddp_gui.script import script_api
from ddp_gui.script.script_api import ScriptApi, ScriptRules
from trainers.contract import code, rundir
from trainers.contract import config as config_module
from trainers.contract.config import ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.engines import registry, start
from trainers.engines.base import AskedField, Choice, Launch, StartError
from trainers.engines.local import sandbox
from trainers.engines.ssh.register import engine_of

TEACHER, STUDENT = Person(name="tea", role="teacher"), Person(name="stu", role="student")
CLASS = ScriptRules(has_login=True, is_one_users=False)


@pytest.fixture
def settings(tmp_path: Path) -> ClassSettingsFile:
    return ClassSettingsFile(tmp_path)


@pytest.fixture(autouse=True)
def sandbox_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "obstacle", lambda: None)


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


def test_a_script_is_resumed_only_by_who_may_start_it_and_in_its_sandbox(
    settings: ClassSettingsFile, tmp_path: Path
) -> None:
    def make(**more: str) -> RunDirectory:
        config = config_module.parse({"model": "script", "dataset": "script", "script": "a.py", **more})
        return rundir.create(tmp_path, config)

    api = ScriptApi(SimpleNamespace(class_settings=settings), SimpleNamespace(), CLASS)  # type: ignore[arg-type]
    with rights.asked_by(STUDENT), pytest.raises(NotAllowedError, match="your teacher has not allowed"):
        api.plan_again(make())
    with rights.asked_by(TEACHER):
        with pytest.raises(NotAllowedError, match="without a sandbox"):
            api.plan_again(make())
        with pytest.raises(ConfigError, match="folder is '/etc'"):
            api.plan_again(make(script_folder="/etc"))


def test_a_script_on_a_cluster_takes_its_machines_and_partition(settings: ClassSettingsFile) -> None:
    machine = Machine(num_gpus=0, num_cores=4, num_nodes=3, place="each host")
    asked = {"partition": AskedField(default="lab", choices=(Choice(value="lab", words="lab: idle"),))}
    line = SimpleNamespace(
        capacity=lambda _config=None: machine,
        asks=lambda: {**asked, "num_nodes": AskedField(default=1)},
        refuse_for_engine=lambda _config: None,
    )
    rules = ScriptRules(has_login=False, is_one_users=True)
    api = ScriptApi(SimpleNamespace(class_settings=settings), line, rules)  # type: ignore[arg-type]
    where = {field["name"]: field for field in api.script_page()["where"]}
    assert where["partition"]["choices"] == [["lab", "lab: idle"]] and not where["partition"]["is_number"]
    assert where["num_nodes"]["is_number"] and where["num_nodes"]["default"] == 1
    script = {"files": {"train.py": "import torch"}, "ranks": 2, "partition": "lab", "num_nodes": "2"}
    config = api.plan({**script, "time_limit": ""}).config
    assert (config.partition, config.num_nodes, config.nproc_per_node) == ("lab", 2, 2)
    assert api.plan({**script, "checkpoint_every_steps": "50"}).config.checkpoint_every_steps == 50
    with pytest.raises(ConfigError, match="num_nodes is '0'"):
        api.plan({**script, "num_nodes": "0"})


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


def test_the_command_of_a_script_elsewhere_brings_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, code_dir = tmp_path / "site.toml", tmp_path / "code"
    site.write_text('[ssh]\nhosts = ["pc1", "pc2"]\n')
    code_dir.mkdir()
    (code_dir / "a.py").write_text("import torch\n")
    engine = engine_of(site)
    config = config_module.parse({"model": "script", "dataset": "script", "script": "a.py"})
    started: list[RunDirectory] = []

    def refuse(run: RunDirectory, _step: int | None) -> Launch:
        started.append(run)
        raise StartError("no host is asked")

    monkeypatch.setattr(engine, "start", refuse)
    kind = replace(registry.kinds()["ssh"], create=lambda _options: engine)
    monkeypatch.setattr(registry, "kinds", lambda: {"ssh": kind})
    command = shlex.split(launcher.train_command(engine, config, tmp_path / "runs", str(code_dir)))
    arguments = command[command.index("--engine") :]  # the folder's name is made by the shell
    monkeypatch.setattr(sys, "argv", ["start", str(tmp_path / "runs" / "made-1"), *arguments])
    with pytest.raises(SystemExit, match="no host is asked"):
        start.main()
    assert code.read(started[0].path) == {"a.py": b"import torch\n"}


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
