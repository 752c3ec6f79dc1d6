"""Tests of the scheduler on real run directories, with supervisors that train nothing."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.queue import starter
from ddp_gui.queue.policy import Limits, Users
from ddp_gui.queue.store import QueueStore, QueueStoreError
from tests.harness import wait_until
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.fake_gpus import FakeGpu, FakeNvml
from tests.unit.stand_in import FOUR_GPUS, SERVER, FakeDevices, Place
from trainers.contract import events, rundir, tickets
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import Ticket, TicketError
from trainers.engines import liveness
from trainers.engines.base import StartError
from trainers.engines.local.engine import LocalEngine
from trainers.files import json_files
from trainers.machine import host, nvml, threads


def test_many_pages_and_people_at_once_start_each_run_once_and_never_too_many(place: Place) -> None:
    place.devices = FakeDevices(4)
    pages = [place.page() for _ in range(3)]
    for page in pages:
        page.begin()
    runs: list[RunDirectory] = []

    def click(number: int) -> None:
        runs.append(pages[number % 3].start(place.planned(num_ranks=2), f"person {number % 5}").run)

    clicks = [threading.Thread(target=click, args=(number,)) for number in range(10)]
    for thread in clicks:
        thread.start()
    for thread in clicks:
        thread.join()
    assert len({run.run_id for run in runs}) == 10
    deadline = time.monotonic() + 120
    while any(liveness.read_status(run).state != "finished" for run in runs) and time.monotonic() < deadline:
        going_on = [run for run in runs if run.is_locked() and not run.queued.exists()]
        assert len(going_on) <= 2
        for run in going_on:
            place.supervisors.end(run)
    for page in pages:
        page.close()
    assert sorted(place.supervisors.run_ids()) == sorted(run.run_id for run in runs)


def test_of_two_pages_that_resume_a_run_at_once_one_does(place: Place) -> None:
    pages = [place.page(), place.page()]
    run = pages[0].start(place.planned(), "ann").run
    leave_checkpoint(run, step=5, epoch=0, samples_in_epoch=640)
    place.supervisors.end(run)
    refusals: list[str] = []

    def click(number: int) -> None:
        try:
            pages[number].resume(run, 5, place.planned(), "ann")
        except ValueError as error:
            refusals.append(str(error))

    clicks = [threading.Thread(target=click, args=(number,)) for number in (0, 1)]
    for thread in clicks:
        thread.start()
    for thread in clicks:
        thread.join()
    place.supervisors.has_begun(run)
    assert len(refusals) == 1 and run.run_id in refusals[0], refusals
    assert place.supervisors.run_ids() == [run.run_id] * 2


class KilledError(BaseException):
    """Substitute for kill -9: no code runs after it."""


KILLED_AT = {
    "before there is a run": (rundir, "write_json_atomically", "config.json"),
    "with its ticket written, before it is a run": (tickets, "write_queued", None),
    "before its supervisor is started": (LocalEngine, "start_supervisor", None),
    "with its supervisor started": (LocalEngine, "start_supervisor", "after"),
    "before the queue is written": (json_files, "write_json_atomically", "queue.json"),
}


def kill_at(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, where: str | None) -> None:
    """Kill the page at a call of a function; after the call if `where` is "after"."""
    real = getattr(module, name)

    def dies(*arguments: Any, **options: Any) -> Any:
        if where not in (None, "after") and arguments[0].name != where:
            return real(*arguments, **options)
        if where == "after":
            real(*arguments, **options)
        raise KilledError

    monkeypatch.setattr(module, name, staticmethod(dies) if isinstance(module, type) else dies)


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_page_killed_at_any_moment_of_a_start_neither_loses_a_run_nor_starts_it_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, *KILLED_AT[moment])
        with pytest.raises(KilledError):
            place.page().start(place.planned(), "ann")
    monkeypatch.setattr("ddp_gui.queue.snapshot.STARTING_S", 0.3)
    page = place.page()
    page.begin()
    made = [path.parent.name for path in place.runs_dir.glob("*/config.json")]
    for run_id in made:
        place.supervisors.has_begun(RunDirectory(place.runs_dir / run_id))
    # From now on a run that has not begun is late: it is searched for again, and no run is started twice.
    monkeypatch.setattr("ddp_gui.queue.snapshot.STARTING_S", 0.0)
    for _ in range(2):
        page.tick()
    page.close()

    def going_on() -> list[str]:
        return [each.run.run_id for each in place.supervisors.started if each.poll() is None]

    wait_until("as many going on as there are runs", lambda: going_on() == made, 60)
    assert len(made) == (0 if "before it is a run" in moment or "before there is" in moment else 1)


def test_a_run_that_is_taken_out_has_stopped_and_says_why(place: Place) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    run = line.start(place.planned(), "bob").run
    assert line.remove_from_queue(run)
    assert liveness.read_status(run).state == "stopped"
    assert events.last(run.events)["reason"] == starter.TAKEN_OUT
    assert line.order() == [] and not run.queued.exists()
    assert not line.remove_from_queue(run), "it is not in the line any more"


def test_an_ended_run_goes_on_through_the_line_and_taken_out_is_what_it_was(place: Place) -> None:
    line = place.page()
    run = line.start(place.planned(num_ranks=2), "ann").run
    leave_checkpoint(run, step=60, epoch=1, samples_in_epoch=4000)
    place.supervisors.end(run)
    other = line.start(place.planned(), "bob").run
    placed = line.resume(run, 60, place.planned(num_ranks=1), "ann")
    assert placed.place == 1 and liveness.read_status(run).state == "queued"
    assert run.read_config().nproc_per_node == 1
    with pytest.raises(ValueError, match="is already in the queue"):
        line.resume(run, 60, place.planned(num_ranks=1), "ann")
    assert line.remove_from_queue(run)
    assert liveness.read_status(run).state == "finished", "what it was"
    assert run.read_config().nproc_per_node == 2
    line.resume(run, 60, place.planned(num_ranks=1), "ann")
    place.supervisors.end(other)
    line.tick()
    place.supervisors.has_begun(run)
    assert place.supervisors.of(run).resume_step == 60
    assert run.read_config().nproc_per_node == 1


def test_a_resumed_run_gets_its_recorded_threads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.GIVEN, raising=False)
    monkeypatch.setattr(host, "num_cores", lambda: 8)
    page = place.page()
    run = page.start(place.planned(num_ranks=2), "ann").run
    assert place.supervisors.of(run).grant.num_threads == 1
    leave_checkpoint(run, step=60, epoch=1, samples_in_epoch=4000)
    manifest = run.checkpoints / "step_60" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "world_size": 2, "num_threads": 3}))
    place.supervisors.end(run)
    page.resume(run, 60, place.planned(num_ranks=2), "ann")
    assert place.supervisors.of(run).grant.num_threads == 3
    assert [live.num_cores for live in page.snapshot().situation.running] == [6]


def test_a_supervisor_that_does_not_come_up_is_said_and_the_run_waits_no_longer(place: Place) -> None:
    place.supervisors.is_refused = True
    line = place.page()
    with pytest.raises(StartError, match="could not be started"):
        line.start(place.planned(), "ann")
    (run_id,) = [path.parent.name for path in place.runs_dir.glob("*/config.json")]
    status = liveness.read_status(RunDirectory(place.runs_dir / run_id))
    assert status.state == "failed" and "could not be started" in (status.error or "")
    assert place.tickets() == set()
    place.supervisors.is_refused = False
    placed = line.start(place.planned(), "ann")
    assert placed.place is None, "its ranks are free again"
    place.supervisors.has_begun(placed.run)
    ticket = tickets.read_granted(placed.run)
    assert ticket is not None and (ticket.person, ticket.kind, ticket.num_ranks) == ("ann", "cpu", 2)
    leave_checkpoint(placed.run, step=5, epoch=0, samples_in_epoch=640)
    place.supervisors.end(placed.run)
    place.supervisors.is_refused = True
    with pytest.raises(StartError):
        line.resume(placed.run, 5, place.planned(num_ranks=1), "ann")
    assert placed.run.read_config().nproc_per_node == 2, "as it was before the resume"


def test_a_ticket_that_makes_no_sense_fails_its_run_and_nobody_else_s(place: Place) -> None:
    line = place.page()
    first = line.start(place.planned(), "ann").run
    broken = line.start(place.planned(), "bob").run
    good = line.start(place.planned(), "carl").run
    broken.queued.write_text('{"person": 7}')
    line.tick()
    assert liveness.read_status(broken).state == "failed"
    assert "queued.json" in (liveness.read_status(broken).error or "")
    place.supervisors.end(first)
    line.tick()
    place.supervisors.has_begun(good)


TICKET = asdict(Ticket(person="ann", kind="cpu", num_ranks=1, asked_unix_s=1.0))
GRANT = {"token": "t", "granted_unix_s": 1.0, "gpus": [{"index": 0, "uuid": "GPU-0"}]}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "7",
        '{"grant": 7}',
        *(json.dumps(TICKET | wrong) for wrong in (
            {"num_ranks": True}, {"num_ranks": 10**30}, {"asked_unix_s": math.nan}, {"kind": ["cpu"]},
            {"uses_occupied_gpus": 1}, {"resume_step": "3"}, {"config_before": 7}, {"more": 1},
        )),
        json.dumps({name: value for name, value in TICKET.items() if name != "grant"}),
        json.dumps(TICKET | {"grant": {name: value for name, value in GRANT.items() if name != "gpus"}}),
        *(json.dumps(TICKET | {"grant": GRANT | wrong}) for wrong in (
            {"granted_unix_s": "x"}, {"granted_unix_s": math.inf}, {"token": 7}, {"gpus": [7]},
            {"gpus": [{"index": 0, "uuid": 7}]},
        )),
    ],
)  # fmt: skip
def test_a_ticket_of_the_wrong_kind_is_one_that_makes_no_sense(run: RunDirectory, text: str) -> None:
    """An invalid ticket must not end the queue's thread, which serves all users."""
    run.queued.write_text(text)
    with pytest.raises(TicketError, match="is invalid"):
        tickets.read_queued(run)


def test_a_teacher_reorders_pauses_and_resumes(place: Place) -> None:
    line = place.page()
    first = line.start(place.planned(), "ann").run
    a, b, c, d = (line.start(place.planned(), name).run for name in ("bob", "carl", "dora", "emil"))
    assert line.move(d.run_id, 1) == [d.run_id, a.run_id, b.run_id, c.run_id]
    assert line.move(a.run_id, 3) == [d.run_id, b.run_id, a.run_id, c.run_id]
    assert line.move(c.run_id, 99)[-1] == c.run_id
    assert place.page().order() == [d.run_id, b.run_id, a.run_id, c.run_id], "also for another page"
    with pytest.raises(ValueError, match="is not in the queue"):
        line.move(first.run_id, 1)
    line.pause(True)
    place.supervisors.end(first)
    line.tick()
    assert place.supervisors.run_ids() == [first.run_id]
    assert line.start(place.planned(), "ann").place == 5, "asked for while it is paused, it waits"
    line.pause(False)
    place.supervisors.has_begun(d)


def test_a_pause_during_a_pass_is_not_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    line = place.page()
    first = line.start(place.planned(), "ann").run
    waiting = line.start(place.planned(), "bob").run
    take = line._reader.take

    def pause_then_take(*args: Any) -> Any:
        monkeypatch.setattr(line._reader, "take", take)
        line.pause_unstored()
        return take(*args)

    monkeypatch.setattr(line._reader, "take", pause_then_take)
    line.tick()
    assert line.snapshot().situation.is_paused
    line.tick()
    assert QueueStore(place.runs_dir).read().is_paused
    place.supervisors.end(first)
    line.tick()
    assert line.order() == [waiting.run_id]


def test_limits_are_kept_and_said_in_plain_words(place: Place) -> None:
    place.devices = FakeDevices(8)
    line = place.page()
    line.set_limits(None, Limits(num_ranks=2, num_waiting=1))
    line.set_limits("zoe", Limits())
    line.start(place.planned(num_ranks=1), "ann")
    waiting = line.start(place.planned(num_ranks=2), "ann")
    assert waiting.place == 1, "two more would be three"
    with pytest.raises(ValueError, match="You have 1 run in the queue, and your limit is 1"):
        line.start(place.planned(num_ranks=1), "ann")
    with pytest.raises(ValueError, match=r"nproc_per_node is 3; allowed: .* from 1 to 2: your limit"):
        line.start(place.planned(num_ranks=3), "bob")
    with pytest.raises(ValueError, match="from 1 to 2: the number of CPU ranks that this page allows"):
        place.page(FakeDevices(2)).start(place.planned(num_ranks=3), "zoe")
    assert line.start(place.planned(num_ranks=5), "zoe").place is None, "she has limits of her own"
    line.set_limits("zoe", None)
    assert place.page().snapshot().situation.rules.limits_of("zoe").num_ranks == 2


def test_who_keeps_too_much_is_told_how_much_and_what_to_delete(place: Place) -> None:
    line = place.page()
    run = line.start(place.planned(), "ann").run
    (run.checkpoints / "large").write_bytes(b"x" * 3_000_000)
    line.start(place.planned(), "bob")
    line.set_limits(None, Limits(disk_bytes=2_000_000))
    with pytest.raises(
        ValueError,
        match=r"Your runs use 3\.\d MB of disk space, and your limit is 2\.0 MB.*All of these runs are still",
    ):
        line.start(place.planned(), "ann")
    place.supervisors.end(run)
    with pytest.raises(ValueError, match=rf"The largest: {run.run_id} \(3\.\d MB\)"):
        line.start(place.planned(), "ann")
    assert line.start(place.planned(), "bob").num_waiting >= 0, "others may"


def test_a_run_over_its_minutes_is_told_to_save_and_stop_once(place: Place) -> None:
    line = place.page()
    run = line.start(place.planned(), "ann").run
    line.set_limits(None, Limits(minutes_per_run=0.0001))
    time.sleep(0.05)
    line.tick()
    line.tick()
    (command,) = [json.loads(text) for text in run.commands.read_text().splitlines()]
    assert (command["name"], command["save"]) == ("stop", True)
    assert command["why"] == "The run has reached the time limit of 0.0001 minutes that a teacher has set."


def test_gpus_go_to_one_run_each_and_somebody_else_s_are_left_alone(place: Place) -> None:
    place.devices = FakeDevices(
        None, FOUR_GPUS, **{"GPU-1": Users(other_programs=("blender of eve (pid 7)",))}
    )
    line = place.page()
    two = place.planned(num_ranks=2, machine=SERVER)
    first, second = line.start(two, "ann"), line.start(two, "bob")
    place.supervisors.has_begun(first.run)
    assert [gpu.uuid for gpu in tickets.read_granted(first.run).grant.gpus] == ["GPU-0", "GPU-2"]
    assert second.place == 1
    line.share_gpus(second.run)
    place.supervisors.has_begun(second.run)
    assert [gpu.index for gpu in tickets.read_granted(second.run).grant.gpus] == [3, 1]


def test_a_check_leaves_granted_gpus_alone_and_no_run_is_given_its(place: Place) -> None:
    """The fake machine reports no users of its GPUs: the first run has no context yet."""
    place.devices = FakeDevices(None, FOUR_GPUS)
    line = place.page()
    two = place.planned(num_ranks=2, machine=SERVER)
    first = line.start(two, "ann")
    free, granted = line.with_gpus(lambda free, granted: (list(free), list(granted)))
    assert (free, granted) == (["GPU-2", "GPU-3"], ["GPU-0", "GPU-1"])
    place.devices.now = replace(place.devices.now, being_checked=frozenset(free))
    second = line.start(two, "bob", uses_occupied_gpus=True)
    assert second.place == 1, "they are shared with nobody"
    line.tick()
    assert second.run.run_id in place.tickets()
    place.devices.now = replace(place.devices.now, being_checked=frozenset())
    line.tick()
    place.supervisors.has_begun(second.run)
    assert [gpu.uuid for gpu in tickets.read_granted(second.run).grant.gpus] == ["GPU-2", "GPU-3"]
    place.supervisors.has_begun(first.run)


def test_a_run_started_by_hand_counts_with_its_gpus(place: Place, catalogue: Catalogue) -> None:
    by_hand = rundir.create(place.runs_dir, place.planned(num_ranks=1).config)
    lock = by_hand.acquire_lock()
    line = place.page()
    line.begin()
    wait_until("the run being seen", lambda: line.snapshot().situation.running, 60)
    (running,) = line.snapshot().situation.running
    assert (running.run_id, running.num_ranks) == (by_hand.run_id, 1)
    assert line.start(place.planned(num_ranks=2), "ann").place == 1, "one of two is taken"
    place.devices.now = replace(
        place.devices.now, gpus=FOUR_GPUS, users={"GPU-2": Users(runs=frozenset({by_hand.run_id}))}
    )
    assert line.snapshot().situation.running[0].gpus == ("GPU-2",)
    rundir.os.close(lock)
    line.close()


def test_whoever_starts_a_run_that_waits_by_hand_takes_it_out_of_the_line(place: Place) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    run = line.start(place.planned(), "bob").run
    lock = run.acquire_lock()
    tickets.claim_ticket(run, None)
    assert liveness.read_status(run).state == "starting"
    line.tick()
    assert line.order() == []
    rundir.os.close(lock)


def test_an_invalid_or_held_queue_file_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    line = place.page()
    line.start(place.planned(), "ann")
    run = line.start(place.planned(), "bob").run
    book = place.runs_dir / ".class" / "queue.json"
    book.write_text("{half")
    with pytest.raises(QueueStoreError, match="Delete this file: queued runs stay queued"):
        place.page().start(place.planned(), "carl")
    book.unlink()
    monkeypatch.setattr("ddp_gui.queue.store.LOCK_TIMEOUT_S", 0.1)
    with QueueStore(place.runs_dir).open(), pytest.raises(QueueStoreError, match="does not respond"):
        place.page().start(place.planned(), "carl")
    page = place.page()
    page.begin()
    wait_until("it waiting again", lambda: page.order() == [run.run_id], 60)
    page.close()


def test_by_default_a_run_takes_the_gpus_that_are_free_now_and_the_form_says_who_has_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared server, a first click on all GPUs would wait for programs of other users."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeNvml([FakeGpu(uuid=gpu.uuid) for gpu in FOUR_GPUS]))
    place.devices = FakeDevices(
        None, FOUR_GPUS, **{"GPU-1": Users(other_programs=("blender of eve (pid 7)",))}
    )
    line = place.page()
    here = line.capacity()
    assert (here.num_gpus_of_others, here.num_gpus_of_runs, here.default_ranks()) == (1, 0, 3)
    assert "4 GPUs (NVIDIA Fake 80GB), 1 in use by another program" in here.describe()
    assert plan.parse({}, here).nproc_per_node == 3, "also by a script"
    placed = line.start(place.planned(num_ranks=3, machine=here), "ann")
    assert placed.place is None, "it starts at once"
    now = line.capacity()
    assert (now.num_gpus_of_others, now.num_gpus_of_runs, now.default_ranks()) == (1, 3, 1), "at least one"
    assert plan.make(plan.parse({"nproc_per_node": 4, "batch_size": 100}, now), place.catalogue, now)
