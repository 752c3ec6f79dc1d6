"""Rights to view and change a run, to change the class settings, and to read files of the machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import (
    EVERYBODY,
    NOBODY,
    STRICTEST,
    ClassSettings,
    ClassSettingsFile,
    DataAccess,
    Person,
)
from ddp_gui.launch import launcher
from ddp_gui.run.summary import describe_configuration
from ddp_gui.runs.run_list_routes import RunAdminApi
from tests.unit.class_of import ANN, BOB, EVE
from tests.unit.class_of import EVE as TEACHER
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract import config, rundir
from trainers.contract.config import Config, ConfigError


@pytest.fixture
def store(tmp_path: Path, catalogue):
    """Return a store with a run of Ann's and a run without an owner."""
    rights.note_owner(make_run(tmp_path), "ann")
    make_run(tmp_path)
    return store_of(tmp_path, catalogue)


ANNS, NOBODYS = "fashion_mnist-cnn-1", "fashion_mnist-cnn-2"


@pytest.mark.parametrize(
    ("person", "run_id", "may_change"),
    [
        (ANN, ANNS, True),
        (ANN, NOBODYS, False),
        (BOB, ANNS, False),
        (NOBODY, ANNS, False),
        (TEACHER, NOBODYS, True),
        (EVERYBODY, NOBODYS, True),
    ],
)
def test_only_the_owner_and_teachers_change_a_run(store, person, run_id, may_change) -> None:
    with rights.acting_as(person):
        assert store.open(run_id).run_id == run_id, "everybody may look, unless a teacher says otherwise"
        if may_change:
            assert store.open(run_id, to_change=True).run_id == run_id
        else:
            with pytest.raises(ValueError, match="a teacher can change it"):
                store.open(run_id, to_change=True)


def test_a_hidden_run_is_as_one_that_is_not_there(store) -> None:
    store.class_settings.change(everyone_sees=False)
    with rights.acting_as(BOB):
        for look in (store.open, partial(store.open, to_change=True), store.view, store.row):
            with pytest.raises(ValueError, match="no run of this id") as hidden:
                look(ANNS)
            with pytest.raises(ValueError, match="no run of this id") as absent:
                look("not-there-1")
            assert str(hidden.value) == str(absent.value).replace("not-there-1", ANNS)
        assert store.rows() == []
        assert store.changes().rows == []
    for person, seen in ((ANN, {ANNS}), (TEACHER, {ANNS, NOBODYS})):
        with rights.acting_as(person):
            assert {row["run_id"] for row in store.rows()} == seen
            assert {row["run_id"] for row in store.changes().rows} == seen


def create_as(person: Person, runs_dir: Path, **values: str) -> str:
    """Create a run as this person, and return its id, which equals the predicted one."""
    config = Config(**values)
    with rights.acting_as(person):
        told = next(rundir.next_run_ids(runs_dir, config, launcher.numbering(runs_dir)))
        made = rundir.create(
            runs_dir, config, lambda run: rights.note_owner(run, person.name), launcher.numbering(runs_dir)
        )
    assert made.run_id == told
    return told


def test_the_number_of_a_new_run_tells_nothing_of_hidden_ones(store) -> None:
    assert create_as(BOB, store.runs_dir) == "fashion_mnist-cnn-3"
    store.class_settings.change(everyone_sees=False)
    assert create_as(ANN, store.runs_dir) == "fashion_mnist-cnn-2-ann"
    assert create_as(ANN, store.runs_dir) == "fashion_mnist-cnn-3-ann"
    assert create_as(BOB, store.runs_dir) == "fashion_mnist-cnn-4-bob"
    assert create_as(BOB, store.runs_dir, name="ann's secret") == "ann-s-secret-1-bob"
    assert create_as(TEACHER, store.runs_dir) == "fashion_mnist-cnn-4"
    # A run's number does not depend on runs of other users.
    assert create_as(ANN, store.runs_dir) == "fashion_mnist-cnn-4-ann"


def test_pages_learn_at_once_that_runs_were_hidden(store) -> None:
    with rights.acting_as(BOB):
        before = store.changes()
        assert len(before.rows) == 2
        store.class_settings.change(everyone_sees=False)
        after = store.changes(before.version)
        assert after.is_whole and after.rows == []
        # Bob is not notified of the deletion of a run that was hidden from him.
        (store.runs_dir / ANNS / "config.json").unlink()
        store.listing.read_again([ANNS])
        assert store.changes(after.version).gone == {}
    with rights.acting_as(ANN):
        assert store.changes(after.version).gone == {ANNS: "ann"}


def test_the_run_before_is_not_told_when_it_is_hidden(store) -> None:
    store.class_settings.change(everyone_sees=False)
    rights.note_owner(store.open(NOBODYS), "bob")
    with rights.acting_as(BOB):
        assert describe_configuration(store.open(NOBODYS), store)["before"] is None
    assert describe_configuration(store.open(NOBODYS), store)["before"]["run_id"] == ANNS


def test_the_bin_keeps_whose_a_run_is(store) -> None:
    shelf = RunAdminApi(store)
    with rights.acting_as(BOB), pytest.raises(Exception, match="belongs to ann"):
        shelf.delete_runs([ANNS])
    with rights.acting_as(ANN):
        with pytest.raises(Exception, match="has no owner"):
            shelf.delete_runs([ANNS, NOBODYS])
        shelf.delete_runs([ANNS])
    shelf.delete_runs([NOBODYS])
    with rights.acting_as(BOB):
        assert {item["owner"] for item in shelf.list_bin()} == {"ann", None}
        assert shelf.empty_bin()["num_runs"] == 0
        for change in (shelf.restore_runs, shelf.empty_bin):
            with pytest.raises(Exception, match="belongs to ann"):
                change([ANNS])
        store.class_settings.change(everyone_sees=False)
        assert shelf.list_bin() == []
        with pytest.raises(Exception, match="the id of a run in the bin"):
            shelf.restore_runs([ANNS])
    with rights.acting_as(ANN):
        assert [item["run_id"] for item in shelf.list_bin()] == [ANNS]
        shelf.restore_runs([ANNS])
        assert store.row(ANNS)["owner"] == "ann"
    assert shelf.empty_bin()["num_runs"] == 1


@pytest.mark.parametrize("text", ["", "[1]", '{"everyone_sees": "no"}', '{"other": true}', "\x00"])
def test_a_file_that_makes_no_sense_shows_nothing_by_mistake(tmp_path: Path, text: str) -> None:
    file = ClassSettingsFile(tmp_path)
    file.path.parent.mkdir()
    file.path.write_text(text)
    assert file.read() == STRICTEST


def test_only_a_teacher_changes_them_and_they_are_kept(tmp_path: Path) -> None:
    file = ClassSettingsFile(tmp_path)
    store = SimpleNamespace(class_settings=file, runs_dir=tmp_path)
    api = RunAdminApi(store)
    with rights.acting_as(Person(name="ann", role="student")):
        assert api.class_settings()["everyone_sees"] is True
        with pytest.raises(Exception, match="only a teacher can change the settings"):
            api.class_settings({"everyone_sees": False})
    assert api.class_settings()["everyone_sees"] is True
    assert api.class_settings({"everyone_sees": False})["everyone_sees"] is False
    assert ClassSettingsFile(tmp_path).read() == ClassSettings(everyone_sees=False)
    for changes, words in (
        ({"everyone_sees": 1}, "everyone_sees is 1; allowed"),
        ({"all": True}, "'all' is not"),
    ):
        with pytest.raises(ValueError, match=words):
            file.change(**changes)


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
    with rights.acting_as(person):
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
    with rights.acting_as(ANN):
        assert access.own_uploads() == anns.parent


@pytest.mark.parametrize("field", ["data_path", "pretrained_path"])
@pytest.mark.parametrize(
    "path",
    [
        "elsewhere/table.csv", "not-there.csv", "class/link.csv", "classroom/table.csv", "uploads", "",
    ],
)  # fmt: skip
def test_no_other_path_here_is_theirs(access: DataAccess, tmp_path: Path, path: str, field: str) -> None:
    whole = str(tmp_path / path) if path else "~root/.ssh"
    assert not may(access, ANN, **{field: whole})
    assert may(access, EVE, **{field: whole})
    assert may(access, EVERYBODY, **{field: whole})


def test_only_a_teacher_chooses_where_the_page_sends_data(access: DataAccess) -> None:
    forwarded = config.parse({"forward_to": "mlflow", "forward_address": "http://10.0.0.1:5000"})
    with rights.acting_as(ANN), pytest.raises(ConfigError, match="only a teacher"):
        access.check(forwarded)
    with rights.acting_as(EVE):
        access.check(forwarded)
