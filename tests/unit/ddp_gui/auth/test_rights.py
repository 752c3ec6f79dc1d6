"""Tests of the rights to view and to change a run, enforced in the run store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import EVERYBODY, NOBODY, Person
from ddp_gui.launch import launcher
from ddp_gui.machine.machine_routes import HIDDEN_RUN, without_hidden
from ddp_gui.run.summary import describe_configuration
from ddp_gui.runs.run_list_routes import RunAdminApi
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract import rundir
from trainers.contract.config import Config

ANN = Person(name="ann", role="student")
BOB = Person(name="bob", role="student")
TEACHER = Person(name="eve", role="teacher")


@pytest.fixture
def store(tmp_path: Path, catalogue):  # noqa: F811
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
        (NOBODY, NOBODYS, False),
        (TEACHER, ANNS, True),
        (TEACHER, NOBODYS, True),
        (EVERYBODY, ANNS, True),
        (EVERYBODY, NOBODYS, True),
    ],
)
def test_only_the_owner_and_teachers_change_a_run(store, person, run_id, may_change) -> None:
    with rights.asked_by(person):
        assert store.open(run_id).run_id == run_id, "everybody may look, unless a teacher says otherwise"
        if may_change:
            assert store.open(run_id, to_change=True).run_id == run_id
        else:
            with pytest.raises(ValueError, match="a teacher can change it"):
                store.open(run_id, to_change=True)


def test_a_hidden_run_is_as_one_that_is_not_there(store) -> None:
    store.class_settings.change(everyone_sees=False)
    with rights.asked_by(BOB):
        for look in (store.open, partial(store.open, to_change=True), store.view, store.row):
            with pytest.raises(ValueError, match="no run of this id") as hidden:
                look(ANNS)
            with pytest.raises(ValueError, match="no run of this id") as absent:
                look("not-there-1")
            assert str(hidden.value) == str(absent.value).replace("not-there-1", ANNS)
        assert store.rows() == []
        assert store.changes().rows == []
    for person, seen in ((ANN, {ANNS}), (TEACHER, {ANNS, NOBODYS})):
        with rights.asked_by(person):
            assert {row["run_id"] for row in store.rows()} == seen
            assert {row["run_id"] for row in store.changes().rows} == seen


def create_as(person: Person, runs_dir: Path, **values: str) -> str:
    """Create a run as this person, and return its id, which equals the predicted one."""
    config = Config(**values)
    with rights.asked_by(person):
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


def test_ids_do_not_collide_whatever_people_call_their_runs(store) -> None:
    store.class_settings.change(everyone_sees=False)
    (store.runs_dir / "x-1-bob").mkdir()  # another user's run
    assert create_as(BOB, store.runs_dir, name="x-1-bob") == "x-1-bob-1-bob"
    with rights.asked_by(BOB):
        made = rundir.create(store.runs_dir, Config(name="x"), numbering=launcher.numbering(store.runs_dir))
    assert made.run_id == "x-2-bob"


def test_pages_learn_at_once_that_runs_were_hidden(store) -> None:
    with rights.asked_by(BOB):
        before = store.changes()
        assert len(before.rows) == 2
        store.class_settings.change(everyone_sees=False)
        after = store.changes(before.version)
        assert after.is_whole and after.rows == []
        # Bob is not notified of the deletion of a run that was hidden from him.
        (store.runs_dir / ANNS / "config.json").unlink()
        store.listing.read_again([ANNS])
        assert store.changes(after.version).gone == {}
    with rights.asked_by(ANN):
        assert store.changes(after.version).gone == {ANNS: "ann"}


def test_the_run_before_is_not_told_when_it_is_hidden(store) -> None:
    store.class_settings.change(everyone_sees=False)
    rights.note_owner(store.open(NOBODYS), "bob")
    with rights.asked_by(BOB):
        assert describe_configuration(store.open(NOBODYS), store)["before"] is None
    assert describe_configuration(store.open(NOBODYS), store)["before"]["run_id"] == ANNS


def test_the_bin_keeps_whose_a_run_is(store) -> None:
    shelf = RunAdminApi(store)
    with rights.asked_by(BOB), pytest.raises(Exception, match="belongs to ann"):
        shelf.delete_runs([ANNS])
    with rights.asked_by(ANN):
        with pytest.raises(Exception, match="has no owner"):
            shelf.delete_runs([ANNS, NOBODYS])
        shelf.delete_runs([ANNS])
    shelf.delete_runs([NOBODYS])
    with rights.asked_by(BOB):
        assert {item["owner"] for item in shelf.list_bin()} == {"ann", None}
        assert shelf.empty_bin()["num_runs"] == 0
        for change in (shelf.restore_runs, shelf.empty_bin):
            with pytest.raises(Exception, match="belongs to ann"):
                change([ANNS])
        store.class_settings.change(everyone_sees=False)
        assert shelf.list_bin() == []
        with pytest.raises(Exception, match="the id of a run in the bin"):
            shelf.restore_runs([ANNS])
    with rights.asked_by(ANN):
        assert [item["run_id"] for item in shelf.list_bin()] == [ANNS]
        shelf.restore_runs([ANNS])
        assert store.row(ANNS)["owner"] == "ann"
    assert shelf.empty_bin()["num_runs"] == 1


def test_the_machine_s_report_names_no_hidden_run() -> None:
    process = {"pid": 7, "run_id": ANNS, "name": "python", "user": "root", "memory_used_bytes": 5}
    report = {
        "gpus": [{"index": 0, "processes": [process]}, {"index": 1, "processes": None}],
        "runs": [{"run_id": ANNS}],
    }
    assert without_hidden(report, lambda _: True) == report
    hidden = without_hidden(report, lambda _: False)
    assert ANNS not in str(hidden)
    assert hidden["gpus"][0]["processes"][0]["name"] == HIDDEN_RUN
