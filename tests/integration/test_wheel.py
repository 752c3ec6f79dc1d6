"""The wheel: built, installed by pip, and used in an empty folder by a user without any files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from packaging.requirements import Requirement

from tests.harness import ANSWER_TIMEOUT_S, END_TIMEOUT_S, REPOSITORY, TIMEOUT_SCALE
from tools import page_driver

POLL_S = 0.2
MINE = '''
"""A model of the user's own."""

from torch import nn

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.registry import ModelOptions, register_model


@register_model("mine", label="Mine", description="For a test.", tasks=(IMAGE_CLASSIFICATION,))
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, spec.num_classes))
'''


def project() -> dict[str, Any]:
    """Return the table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return table


@dataclass
class Installed:
    """A home directory with an environment that contains the wheel."""

    home: Path
    wheel: Path

    @property
    def bin(self) -> Path:
        return self.home / "venv" / "bin"

    @property
    def package(self) -> Path:
        (found,) = (self.home / "venv").glob("lib/python3*/site-packages/rankscope")
        return found

    @property
    def environment(self) -> dict[str, str]:
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "TRAINERS_"))
        }
        return own | {"HOME": str(self.home)}

    def files(self) -> dict[str, tuple[int, int]]:
        """Return size and time of every file of the package."""
        found = [(path, path.stat()) for path in self.package.rglob("*")]
        return {str(path): (about.st_size, about.st_mtime_ns) for path, about in found}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel; its dependencies are those of this environment, whose versions pip compares."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPOSITORY)]
    subprocess.run([*pip, "wheel", *options], check=True)
    (wheel,) = folder.glob("rankscope-*.whl")
    home = folder / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    (packages,) = (home / "venv").glob("lib/python3*/site-packages")
    (packages / "these.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    # Without an index, pip fails if the version of a dependency is outside its range.
    command = [home / "venv" / "bin" / "python", *pip[1:], "install", "--no-index", wheel]
    subprocess.run(command, check=True)
    return Installed(home, wheel)


@dataclass
class Page:
    """The page that the command of the wheel has opened."""

    address: str
    folder: Path


@pytest.fixture(scope="module")
def page(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder, port = tmp_path_factory.mktemp("empty"), page_driver.free_port()
    own = installed.home / ".local" / "share" / "rankscope" / "plugins"
    for kind in ("models", "lessons"):
        (own / kind).mkdir(parents=True)
    (own / "models" / "mine.py").write_text(MINE)
    lesson = (REPOSITORY / "assets" / "lessons" / "01-what-a-rank-is.md").read_text(encoding="utf-8")
    own_lesson = lesson.replace("What a rank is", "A lesson of mine", 1)
    (own / "lessons" / "99-mine.md").write_text(own_lesson, encoding="utf-8")
    before = installed.files()
    command = ["env", "-C", str(folder), "-u", "XDG_DATA_HOME", "-u", "XDG_CACHE_HOME"]
    command += [f"HOME={installed.home}"]
    command += [str(installed.bin / "rankscope"), "--no-browser", "--no-standby", "--port", str(port)]
    with page_driver.serve_command(command, port) as server:
        yield Page(server.address, folder)
    assert installed.files() == before, "the package was written to"
    assert not list(folder.iterdir()), "the current folder was written to"


def test_a_run_with_an_own_model_finishes(page: Page, installed: Installed) -> None:
    client = Client(page.address, verbose=False)
    settings = {"dataset": "digits", "model": "mine", "num_epochs": 1, "nproc_per_node": 2, "device": "cpu"}
    run_id = client.predict(settings, api_name="/start_run")["run_id"]
    deadline = time.monotonic() + END_TIMEOUT_S * TIMEOUT_SCALE
    while (status := client.predict(run_id, api_name="/run_status"))["state"] not in ("finished", "failed"):
        assert time.monotonic() < deadline, status
        time.sleep(POLL_S)
    assert status["state"] == "finished", status
    assert (installed.home / ".local/share/rankscope/runs" / run_id / "events.jsonl").is_file()


def test_the_page_has_its_files_and_the_own_lesson(page: Page) -> None:
    for path in ("", "live/assets/js/main.js", "live/glossary"):
        with urllib.request.urlopen(f"{page.address}/{path}", timeout=ANSWER_TIMEOUT_S) as answer:
            assert len(answer.read()) > 100, path
    with urllib.request.urlopen(f"{page.address}/live/learn", timeout=ANSWER_TIMEOUT_S) as answer:
        text = answer.read().decode()
    assert "A lesson of mine" in text and "Who sees which sample" in text


def test_the_commands_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [installed.bin / "rankscope", *words]
        ended = subprocess.run(
            command, cwd=tmp_path, env=installed.environment, capture_output=True, text=True
        )
        return ended.stdout + ended.stderr

    assert run("--help").startswith("usage: rankscope [")
    assert "rankscope check-machine" in run("--help")
    assert run("add-to-menu", "--help").startswith("usage: rankscope add-to-menu")
    assert not (installed.home / ".local/share/applications").exists()
    assert run("accounts", "--help").startswith("usage: rankscope accounts [")
    assert "rankscope accounts FILE add" in run("--teacher", "ann")
    assert "rankscope --help lists the options" in run("--colour")
    assert run("--version") == f"Rankscope {project()['version']}\n"


def test_the_pins_are_inside_the_ranges_of_the_wheel() -> None:
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    ranges = {found.name: found for found in map(Requirement, project()["dependencies"])}
    assert pins.keys() == ranges.keys()
    for name, version in pins.items():
        assert version in ranges[name].specifier and ">=" in str(ranges[name].specifier), name
    (newest,) = re.findall(r"<2\.(\d+)", str(ranges["torch"].specifier))
    assert int(newest) == int(pins["torch"].split(".")[1]) + 1, (
        "the pinned torch is the latest that was tried"
    )
