"""Tests of the test selection for a change, in a small project and in this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import select_tests
from tools.select_tests import ALWAYS, EVERYTHING, SMOKE_TESTS, changed_files, inside, select

HELPER = """
from trainers import engine, status

def read():
    return status

def start():
    return engine
"""
CONFTEST = """
import pytest
from tests.helper import start

@pytest.fixture
def run():
    return start()
"""
FILES = {
    "app.py": "from ddp_gui import page",
    "ddp_gui/__init__.py": "",
    "ddp_gui/page.py": "def show():\n    from trainers import rates\n",
    "trainers/__init__.py": "",
    "trainers/rates.py": '"""Used by trainers/worker.py."""',
    "trainers/worker.py": "from trainers import registry",
    "trainers/registry.py": "import importlib",
    "trainers/models/__init__.py": "",
    "trainers/models/mlp.py": "",
    "trainers/lonely.py": "",
    "trainers/engine.py": "COMMAND = ['-m', 'trainers.worker']",
    "trainers/status.py": "",
    "tests/__init__.py": "",
    "tests/helper.py": HELPER,
    "tests/conftest.py": CONFTEST,
    "tests/ui/__init__.py": "",
    "tests/ui/test_page.py": "PROGRAM = 'python app.py'",
    "tests/unit/test_rates.py": "import trainers.rates",
    "tests/unit/test_engine.py": "from trainers import engine",
    "tests/unit/test_status.py": "from tests.helper import read",
    "tests/integration/test_run.py": "def test_it(run): ...",
    "tests/integration/test_idle.py": "",
    "README.md": "",
    "assets/rates.json": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("tests/unit/test_rates.py", {"unit/test_rates.py"}),
        # Through an import, at the top or in a function, also in a program that a string names.
        ("trainers/rates.py", {"unit/test_rates.py", "ui/test_page.py"}),
        ("app.py", {"ui/test_page.py"}),
        # Through the imports that a fixture or helper uses, but not those of other functions in its module.
        ("trainers/status.py", {"unit/test_status.py"}),
        ("trainers/engine.py", {"unit/test_engine.py", "integration/test_run.py"}),
        # Through programs that are started. A docstring that names a program does not start it; nor does a
        # unit test.
        ("trainers/worker.py", {"integration/test_run.py"}),
        # Plug-ins, through the module that discovers them.
        ("trainers/models/mlp.py", {"integration/test_run.py"}),
        ("tests/helper.py", {"unit/test_status.py", "integration/test_run.py"}),
        ("README.md", set()),
    ],
)
def test_a_change_selects_the_tests_that_can_reach_it(
    project: Path, changed: str, affected: set[str]
) -> None:
    selected = select(project, [changed])
    smoke = {
        test
        for area, test in SMOKE_TESTS.items()
        if not any(f"tests/{each}".startswith(area) for each in affected)
    }
    assert set(selected) == {*ALWAYS, *(f"tests/{each}" for each in affected), *smoke}
    assert len(selected) == len(set(selected))


@pytest.mark.parametrize(
    "changed",
    [
        [],
        ["assets/rates.json"],
        ["tests/conftest.py"],
        ["requirements.txt"],
        ["trainers/removed.py"],
        ["trainers/lonely.py"],
        ["tests/unit/test_rates.py", "pyproject.toml"],
    ],
)
def test_everything_runs_when_in_doubt(project: Path, changed: list[str]) -> None:
    assert select(project, changed) == EVERYTHING
    assert inside("tests/unit", EVERYTHING) == ["tests/unit"]


def test_the_selection_of_a_folder_has_no_test_of_another(project: Path) -> None:
    selected = inside("tests/unit", select(project, ["trainers/engine.py"]))
    assert set(selected) == {*ALWAYS, "tests/unit/test_engine.py"}


def test_changed_files_are_those_that_differ_from_the_last_commit(project: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=project, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    assert changed_files(project) == []
    assert changed_files(project.parent) == [], "no repository: everything runs"
    git("mv", "trainers/rates.py", "trainers/new name.py")
    (project / "app.py").write_text("")
    (project / "ddp_gui" / "untracked.py").write_text("")
    moved = ["trainers/rates.py", "trainers/new name.py"]
    assert sorted(changed_files(project)) == sorted(["app.py", "ddp_gui/untracked.py", *moved])


@pytest.mark.slow
def test_in_this_project_a_change_selects_what_it_must_and_not_everything() -> None:
    graph = select_tests.Graph(select_tests.REPOSITORY)
    needed = {test: graph.reachable(test) for test in graph.tests()}
    # An integration test reaches files that are forked by path, started as modules, or loaded as plug-ins.
    for file in (
        "fork_worker.py",
        "worker.py",
        "loop.py",
        "models/networks/mlp.py",
        "datasets/tables.py",
    ):
        path = f"trainers/{file}"
        if path in graph.files:
            assert path in needed["tests/integration/test_run.py"], path
    assert {"app.py", "ddp_gui/auth/sessions.py"} <= needed["tests/ui/train/test_page.py"]
    assert "trainers/loop.py" not in needed["tests/unit/ddp_gui/auth/test_sessions.py"]
    for test in SMOKE_TESTS.values():
        path, _, name = test.partition("::")
        assert name in graph.files[path].parts, test
    for test in ALWAYS:
        assert (select_tests.REPOSITORY / test).exists()
