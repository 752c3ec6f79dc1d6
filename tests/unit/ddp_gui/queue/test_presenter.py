"""Tests of the queue on pages: places, estimates and plain reasons, without other users' names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import Person
from ddp_gui.queue.policy import Users
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.queue_routes import expected_wait
from ddp_gui.queue.scheduler import Scheduler
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.queue.test_scheduler import LAPTOP, SERVER, Place, place  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from tests.unit.stand_in import FOUR_GPUS, FakeDevices, Supervisors, supervisors  # noqa: F401 - a fixture

# ruff: noqa: F811

BOB = Person(name="bob", role="student")
EVE = Person(name="eve", role="teacher")


def view_of(place: Place, line: Scheduler, catalogue: Any) -> QueuePresenter:
    return QueuePresenter(line, store_of(place.runs_dir, catalogue))


def test_a_student_sees_the_own_place_and_no_name_that_is_hidden(place: Place, catalogue) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    anns, bobs = line.start(place.planned(), "ann").run, line.start(place.planned(), "bob").run
    view = view_of(place, line, catalogue)
    with rights.asked_by(BOB):
        page = view.page(
            BOB, lambda run_id: rights.owner_of(anns.__class__(place.runs_dir / run_id)) == "bob"
        )
    assert [(run["run_id"], run["is_mine"], run["place"]) for run in page["waiting"]] == [
        (bobs.run_id, True, 1),
        (None, False, 2),
    ]
    assert "ann" not in str([page["waiting"][1], page["running"]])
    assert page["may_manage"] is False and "people" not in page["limits"]
    assert view.page(EVE, lambda _: True)["limits"]["people"] == {}


def test_a_change_on_this_page_is_shown_at_once(
    place: Place, catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_gui.queue.presenter.REFRESH_EVERY_S", float("inf"))
    line = place.page()
    line.start(place.planned(), "ann")
    runs = [line.start(place.planned(), name).run.run_id for name in ("bob", "carl")]
    view = view_of(place, line, catalogue)
    assert view.view() is view.view(), "a view without a change is shared"
    line.move(runs[1], 1)
    assert [run.run_id for run in view.view().order] == [runs[1], runs[0]]
    line.pause_unstored()
    assert view.page(EVE, lambda _: True)["is_paused"]
    line.pause(False)
    assert not view.page(EVE, lambda _: True)["is_paused"]


def test_each_reason_to_wait_is_said(place: Place, catalogue) -> None:
    place.devices = FakeDevices(2, FOUR_GPUS[:2], **{"GPU-0": Users(others=("blender of eve (pid 7)",))})
    line = place.page()
    line.start(place.planned(), "ann")
    second = line.start(place.planned(), "bob").run
    on_gpus = line.start(place.planned(num_ranks=2, machine=SERVER), "carl").run
    view = view_of(place, line, catalogue)
    assert view.place(second.run_id)["why"] == "It needs 2 CPU ranks and starts as soon as enough are free."
    said = view.place(on_gpus.run_id)
    assert said["can_share_gpus"] and "GPU 0: blender of eve (pid 7)" in said["why"]
    place.devices.now = replace(place.devices.now, users={}, being_checked=frozenset({"GPU-1"}))
    assert "A check of this machine is running" in view.place(on_gpus.run_id, afresh=True)["why"]
    gpus = view.page(EVE, lambda _: True)["devices"]["gpus"]
    assert [gpu["others"] for gpu in gpus] == [[], ["the check of this machine"]]
    line.pause(True)
    assert view.place(second.run_id, afresh=True)["why"].startswith("The queue is paused")
    line.pause(False)
    line.take_out(second)
    assert view.place(second.run_id, afresh=True)["place"] is None


def test_the_expected_wait_ends_with_the_live_run(
    place: Place, catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    view = view_of(place, line, catalogue)
    monkeypatch.setattr(view, "_remaining_s", lambda _run: 240.0)
    told = expected_wait(view.view(afresh=True), "ann", "cpu", 2, may_share=False)
    assert told == {"place": 1, "starts_in_s": 240.0, "words": "1st in the queue, starts in about 4 min"}
