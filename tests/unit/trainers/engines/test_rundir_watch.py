"""A run detects that its directory was deleted or moved, without false positives."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.local.supervisor import RundirWatch


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return rundir.create(tmp_path / "runs", Config(name="run"))


def test_directory_without_its_configuration_is_gone(run: RunDirectory) -> None:
    subject = RundirWatch(run)
    run.config.unlink()
    assert [subject.is_gone() for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("comes_another", [False, True])
def test_directory_that_was_moved_is_gone_at_the_second_look(
    run: RunDirectory, tmp_path: Path, comes_another: bool
) -> None:
    subject = RundirWatch(run)
    run.path.rename(tmp_path / "elsewhere")
    if comes_another:
        shutil.copytree(tmp_path / "elsewhere", run.path)
    assert [subject.is_gone() for _ in range(3)] == [False, True, True]
