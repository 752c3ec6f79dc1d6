"""Tests of data access: which files a user's runs may read, and how often a user may start something."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import EVERYBODY, NOBODY, DataAccess
from ddp_gui.operations import Rate
from tests.unit.class_of import ANN, BOB, EVE
from trainers.contract import config
from trainers.contract.config import ConfigError


@pytest.fixture
def access(tmp_path: Path) -> DataAccess:
    """Return the access rules where Ann has uploaded a table and a teacher allows one folder."""
    allowed, elsewhere = tmp_path / "class", tmp_path / "elsewhere"
    for folder in (allowed, elsewhere, tmp_path / "uploads" / "people" / "ann"):
        folder.mkdir(parents=True)
        (folder / "table.csv").write_text("a,b\n1,2\n")
    (allowed / "link.csv").symlink_to(elsewhere / "table.csv")
    return DataAccess(tmp_path / "uploads", [allowed])


def may(access: DataAccess, person: rights.Person, **paths: str) -> bool:
    with rights.asked_by(person):
        try:
            access.check(config.parse({"dataset": "own_table", **paths}))
        except ConfigError as error:
            return "a file that you have uploaded" not in str(error)
    return True


def test_students_have_their_uploads_and_what_is_allowed(access: DataAccess, tmp_path: Path) -> None:
    anns, allowed = tmp_path / "uploads/people/ann/table.csv", tmp_path / "class/table.csv"
    for path in (anns, allowed):
        assert may(access, ANN, data_path=str(path))
    assert not may(access, BOB, data_path=str(anns))
    assert not may(access, NOBODY, data_path=str(anns))
    with rights.asked_by(ANN):
        assert access.own_uploads() == anns.parent


@pytest.mark.parametrize("field", ["data_path", "pretrained_path"])
@pytest.mark.parametrize(
    "path",
    [
        "elsewhere/table.csv",
        "not-there.csv",
        "class/link.csv",
        "classroom/table.csv",
        "uploads",
        "",
    ],
)
def test_no_other_path_of_the_machine_is_theirs(
    access: DataAccess, tmp_path: Path, path: str, field: str
) -> None:
    whole = str(tmp_path / path) if path else "~root/.ssh"
    assert not may(access, ANN, **{field: whole})
    assert may(access, EVE, **{field: whole})
    assert may(access, EVERYBODY, **{field: whole})


def test_one_person_starts_so_many_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, api, pace = [100.0], SimpleNamespace(), Rate("a start", 3)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for _ in range(10):
        pace.count(api)  # no limit without a login
    with rights.asked_by(ANN):
        for _ in range(3):
            pace.count(api)
        with pytest.raises(ValueError, match="a start 3 times within 60 seconds: wait 60 seconds"):
            pace.count(api)
    with rights.asked_by(BOB):
        pace.count(api)
    now[0] += 61
    with rights.asked_by(ANN):
        pace.count(api)


def test_only_a_teacher_chooses_where_the_page_sends_data(access: DataAccess) -> None:
    forwarded = config.parse({"forward_to": "mlflow", "forward_address": "http://10.0.0.1:5000"})
    with rights.asked_by(ANN), pytest.raises(ConfigError, match="only a teacher"):
        access.check(forwarded)
    with rights.asked_by(EVE):
        access.check(forwarded)
