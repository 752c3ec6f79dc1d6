"""Tests of the process that inspects data: it is ended after a timeout and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddp_gui.background import trainer_process
from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.background.trainer_process import InspectionError
from tests.harness import wait_until
from trainers.contract import config as config_module
from trainers.contract.config import ConfigError
from trainers.machine import facilities

IGNORES_SIGTERM = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(here / "pid").write_text(str(os.getpid()))
(here / "half").touch()
time.sleep(600)
"""


def test_look_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(subprocess.Popen[bytes]):
        """Starts the timeout after the mark is written, so that Python's start-up time does not count."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            wait_until("its mark", (tmp_path / "half").exists, 60)

    monkeypatch.setattr(trainer_process.subprocess, "Popen", Begun)
    monkeypatch.setattr(trainer_process, "END_S", 0.5)
    with pytest.raises(InspectionError, match="took more than"):
        trainer_process._run_inspection(spawn([sys.executable, "-c", IGNORES_SIGTERM, str(tmp_path)]), 0.3)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "because memory ran out"),
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("raise SystemExit('the last words')", "the last words"),
    ],
)
def test_look_that_fails_says_why(script: str, words: str) -> None:
    with pytest.raises(InspectionError) as failed:
        trainer_process._run_inspection(spawn([sys.executable, "-c", script]), 60.0)
    assert words in str(failed.value)


def spawn(command: list[str]) -> Any:
    return partial(trainer_process._spawn, command)


def test_files_of_a_killed_look_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process.tempfile, "tempdir", str(tmp_path))
    script = "import os, tempfile; tempfile.mkdtemp(prefix='ddp-table-'); os.kill(os.getpid(), 9)"
    with pytest.raises(InspectionError):
        trainer_process._run_inspection(spawn([sys.executable, "-c", script]), 60.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not facilities.are_available(), reason="nothing is forked without Linux's facilities")
def test_nothing_is_inspected_when_the_page_has_ended() -> None:
    template = TorchTemplate()
    template.close()
    with pytest.raises(InspectionError, match="the page ended"):
        trainer_process.inspect_data(config_module.parse({"data_path": "t.csv"}), template)
    assert template._process is None


def test_path_is_never_taken_for_an_option() -> None:
    config = config_module.parse({"data_path": "--prepare", "label_column": "-x"})
    arguments = trainer_process._arguments(config)
    assert "--path=--prepare" in arguments and "--label-column=-x" in arguments


def test_zero_character_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="without NUL characters"):
        config_module.parse({"data_path": "a\0b"})
