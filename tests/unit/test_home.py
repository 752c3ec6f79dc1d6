"""A run whose directory is deleted or moved notices it, and nothing else is taken for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers import home
from trainers.home import Home


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "LOOK_EVERY_S", 0.0)


def test_directory_that_is_there_is_not_gone_whatever_happens_in_it(tmp_path: Path) -> None:
    subject = Home(tmp_path)
    for name in "abc":
        (tmp_path / name).mkdir()
        assert not subject.is_gone()


@pytest.mark.parametrize("comes_another", [False, True])
def test_directory_that_was_moved_is_gone_at_the_second_look(tmp_path: Path, comes_another: bool) -> None:
    folder = tmp_path / "run-1"
    folder.mkdir()
    subject = Home(folder)
    folder.rename(tmp_path / "elsewhere")
    if comes_another:
        folder.mkdir()
    assert [subject.is_gone() for _ in range(3)] == [False, True, True]


def test_directory_that_comes_back_is_not_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    folder.mkdir()
    subject = Home(folder)
    folder.rename(tmp_path / "elsewhere")
    assert not subject.is_gone()
    (tmp_path / "elsewhere").rename(folder)
    assert not subject.is_gone()
    assert not subject.is_gone()
