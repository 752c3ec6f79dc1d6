"""Tests of the queue on pages: places, estimates and plain reasons, without other users' names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import EVERYBODY
from ddp_gui.queue.policy import Users
from ddp_gui.queue.presenter import QueuePresenter, RunLabels, describe_jobs
from ddp_gui.queue.queue_routes import expected_wait
from ddp_gui.queue.scheduler import Scheduler
from tests.unit.class_of import BOB, EVE
from tests.unit.ddp_gui.run.test_routes import run_with
from tests.unit.ddp_gui.runs.test_runs import store_of
from tests.unit.stand_in import FOUR_GPUS, SERVER, FakeDevices, Place
from trainers.contract.status import Status
from trainers.engines.base import EngineJob, EngineQueue


def view_of(place: Place, line: Scheduler, catalogue: Any) -> QueuePresenter:
    return QueuePresenter(line, store_of(place.runs_dir, catalogue))


def test_a_student_sees_the_own_place_and_no_name_that_is_hidden(place: Place, catalogue) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    anns, bobs = line.start(place.planned(), "ann").run, line.start(place.planned(), "bob").run
    view = view_of(place, line, catalogue)
    with rights.acting_as(BOB):
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


def test_each_reason_to_wait_is_said(place: Place, catalogue) -> None:
    place.devices = FakeDevices(
        2, FOUR_GPUS[:2], **{"GPU-0": Users(other_programs=("blender of eve (pid 7)",))}
    )
    line = place.page()
    line.start(place.planned(), "ann")
    second = line.start(place.planned(), "bob").run
    on_gpus = line.start(place.planned(num_ranks=2, machine=SERVER), "carl").run
    view = view_of(place, line, catalogue)
    assert view.place(second.run_id)["why"] == "It needs 2 CPU ranks and starts as soon as enough are free."
    said = view.place(on_gpus.run_id)
    assert said["can_share_gpus"] and "GPU 0: blender of eve (pid 7)" in said["why"]
    place.devices.now = replace(place.devices.now, users={}, being_checked=frozenset({"GPU-1"}))
    assert "A check of this machine is running" in view.place(on_gpus.run_id, force_refresh=True)["why"]
    gpus = view.page(EVE, lambda _: True)["devices"]["gpus"]
    assert [gpu["others"] for gpu in gpus] == [[], ["the check of this machine"]]
    line.pause(True)
    assert view.place(second.run_id, force_refresh=True)["why"].startswith("The queue is paused")
    line.pause(False)
    line.remove_from_queue(second)
    assert view.place(second.run_id, force_refresh=True)["place"] is None


def test_the_wait_ends_with_the_live_run(place: Place, catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    view = view_of(place, line, catalogue)
    monkeypatch.setattr(view, "_remaining_s", lambda _run: 240.0)
    told = expected_wait(view.view(force_refresh=True), "ann", "cpu", 2, may_share=False)
    assert told == {"place": 1, "starts_in_s": 240.0, "words": "1st in the queue, starts in about 4 min"}


JOB = EngineJob(
    number="12", handle={"job_id": "12"}, name="other", state="waits", is_waiting=True, why="", where="gpu",
    nodes="", num_nodes=2, place=None, num_waiting=None, submitted_unix_s=None, starts_unix_s=None,
)  # fmt: skip


def test_only_the_newest_job_of_a_run_is_that_run(tmp_path: Path, catalogue) -> None:
    run, store = run_with(tmp_path, 100), store_of(tmp_path, catalogue)
    run.write_status(Status(state="queued", engine="slurm", handle={"job_id": "12"}))
    named = f"ddp-{run.run_id}"
    jobs = (
        JOB,
        replace(JOB, name=named),
        replace(JOB, name=named, handle={"job_id": "11"}),
        replace(JOB, name="ddp-../../etc"),
        replace(JOB, name="ddp-gone"),
    )
    queue = EngineQueue(name="Slurm", jobs=jobs)
    for is_seen, run_ids in ((True, [None, run.run_id, None, None, None]), (False, [None] * 5)):
        shown = describe_jobs(queue, RunLabels(store, EVERYBODY, lambda _, is_seen=is_seen: is_seen))
        assert [job["run_id"] for job in shown["jobs"]] == run_ids
