"""An entry that does not belong in a runs folder affects only itself: queue, list and pages keep working."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui import operations
from ddp_gui.auth import rights
from ddp_gui.background.workers import SlowProcessError
from ddp_gui.queue import queue_routes, starter
from ddp_gui.queue import scheduler as line_module
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.queue_routes import QueueApi
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.run import downloads, logs, stream
from ddp_gui.runs import bin as run_bin
from ddp_gui.runs import exports, run_list_routes
from tests.faults.page import EXPORTS, LIVE
from tests.harness import wait_until
from tests.stray_entries import ENTRIES, in_time, put
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from tests.unit.stand_in import FakeDevices, Place
from trainers.contract import tickets
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import Ticket
from trainers.machine import threads

WAITING = Ticket(person="ann", kind="cpu", num_ranks=1, asked_unix_s=1.0)
IN_A_RUN = (
    "run.lock", "status.json", "config.json", "events.jsonl", "commands.jsonl", "queued.json", "granted.json",
    "notes.json", "owner.json", "data.json", "logs", "checkpoints", "logs/rank_0.log", "logs/supervisor.log",
    "checkpoints/step_5", ".status.json.1.tmp", "anything",
)  # fmt: skip
BESIDE_RUNS = (
    ".class", ".class/queue.json", ".class/settings.json", ".cache", ".cache/list.json", ".bin", ".standby",
)  # fmt: skip
OTHER_NAMES = (b"README", b"a" * 100, b"x" * 255, b"\xff\xfe", "ä".encode() * 127)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the queue's thread poll every 20 ms."""
    monkeypatch.setattr(line_module, "POLL_EVERY_S", 0.02)
    monkeypatch.setattr(line_module, "SEARCH_EVERY_S", 0.02)
    # There are hundreds of exports; one process for each would take minutes.
    monkeypatch.setattr(exports, "module_output", made_here)


def made_here(module: str, asked: Any) -> Iterator[bytes]:
    """Yield the output of the export process without starting it."""
    assert module == "ddp_gui.runs.exports"
    try:
        yield from exports.generate_export(orjson.loads(orjson.dumps(asked)))
    except Exception as error:
        raise SlowProcessError(f"{module} ended with {error!r}") from error


def begins_who_waits(place: Place, page: Scheduler) -> None:
    """Start one run through the page, enqueue another by its ticket file, and wait until both start."""
    started = in_time("Start", lambda: page.start(place.planned(), "ann")).run
    by_hand = make_run(place.runs_dir)
    tickets.write_queued(by_hand, WAITING)
    for run in (started, by_hand):
        place.supervisors.has_begun(run)


def ask_everything(runs_dir: Path, catalogue: Any, line: Scheduler, run_ids: list[str]) -> None:
    """Request every route for every run; none responds with a server error."""
    store = store_of(runs_dir, catalogue)
    view = QueuePresenter(line, store)
    app = FastAPI()
    app.include_router(run_list_routes.make_router(store, view.places))
    for module in (exports, stream, logs):
        app.include_router(module.make_router(store))
    app.include_router(downloads.make_download_router(store))
    app.include_router(operations.make_router(QueueApi(store, line, view)))
    app.include_router(queue_routes.make_router(line, view, store))
    client = TestClient(app)
    for route in (
        "/live/runs",
        "/live/runs?since=-1",
        "/live/queue",
        f"/live/runs/compare?ids={','.join(run_ids[:8])}",
    ):
        answer = in_time(route, lambda route=route: client.get(route))
        assert answer.status_code == 200, f"{route}: {answer.text}"
    for run_id in run_ids:
        # The stream of a live run does not end; `poll` reads the same data.
        for route in (*(each for each in LIVE if each != "stream"), *EXPORTS, "checkpoints/5/download"):
            path = f"/live/runs/{run_id}/{route}"
            answer = in_time(path, lambda path=path: client.get(path))
            assert answer.status_code in (200, 404), f"{path}: {answer.status_code} {answer.text}"


@pytest.mark.parametrize("name", IN_A_RUN)
@pytest.mark.slow
def test_whatever_lies_in_a_run_costs_only_that_run(place: Place, catalogue, quick, name: str) -> None:
    made = {}
    for kind in ENTRIES:
        run = made[kind] = make_run(place.runs_dir)
        rights.note_owner(run, "ann")
        (run.logs / "rank_0.log").write_text("a line\n")
        # Half of the runs are queued; the queue opens those repeatedly.
        if len(made) % 2:
            tickets.write_queued(run, WAITING)
        put(kind, run.path / name)
    good = make_run(place.runs_dir)
    place.devices = FakeDevices(len(ENTRIES) + 2)
    page = place.page()
    page.begin()
    try:
        begins_who_waits(place, page)
        ask_everything(place.runs_dir, catalogue, page, [good.run_id, *(run.run_id for run in made.values())])
        rows = in_time("the list", store_of(place.runs_dir, catalogue).rows)
        assert any(row["run_id"] == good.run_id and row["state"] == "stopped" for row in rows)
        in_time("what is kept", lambda: starter.bytes_by_run(place.runs_dir, "ann"))
        assert page._thread.is_alive
    finally:
        page.close()


@pytest.mark.parametrize("kind", ENTRIES)
def test_whatever_lies_beside_the_runs_costs_only_itself(place: Place, catalogue, quick, kind: str) -> None:
    good = make_run(place.runs_dir)
    for name in OTHER_NAMES:
        ENTRIES[kind](place.runs_dir / os.fsdecode(name))
    place.devices = FakeDevices(4)
    page = place.page()
    page.begin()
    try:
        begins_who_waits(place, page)
        ask_everything(place.runs_dir, catalogue, page, [good.run_id, "README"])
        in_time("what is kept", lambda: starter.bytes_by_run(place.runs_dir, "ann"))
        assert in_time("deleting", lambda: run_bin.delete(place.runs_dir, [good.run_id]))
    finally:
        page.close()


@pytest.mark.parametrize("kind", ENTRIES)
def test_whatever_lies_in_the_bin_costs_only_itself(place: Place, kind: str) -> None:
    run = make_run(place.runs_dir)
    run_bin.delete(place.runs_dir, [run.run_id])
    for name in ("README", "run-1", "run-1~2"):
        ENTRIES[kind](place.runs_dir / run_bin.FOLDER / name)
    found = in_time("the bin", lambda: run_bin.content(place.runs_dir))
    assert run.run_id in [item.bin_id for item in found]
    in_time("emptying", lambda: run_bin.empty(place.runs_dir))
    assert run.run_id not in [item.bin_id for item in run_bin.content(place.runs_dir)]


# Every kind for the file that the queue reads in each pass, and each other name with two kinds.
@pytest.mark.parametrize(
    ("kind", "name"),
    dict.fromkeys(
        (
            *((kind, ".class/queue.json") for kind in ENTRIES),
            *zip(ENTRIES, itertools.cycle(BESIDE_RUNS), strict=False),
        )
    ),
)
def test_what_replaces_a_file_of_the_page_is_said(
    place: Place, catalogue, quick, kind: str, name: str
) -> None:
    good = make_run(place.runs_dir)
    path = place.runs_dir / name
    path.parent.mkdir(exist_ok=True)
    put(kind, path)
    page = place.page()
    page.begin()
    try:
        store = store_of(place.runs_dir, catalogue)
        rows = in_time("the list", store.rows)
        assert [row["run_id"] for row in rows] == [good.run_id]
        in_time("keeping the list", lambda: _or_error(store.listing.save))
        in_time("the bin", lambda: _or_error(lambda: run_bin.content(place.runs_dir)))
        # Without its state file the queue stops and reports it; it continues once the entry is removed.
        in_time("a start", lambda: _or_error(lambda: page.start(place.planned(), "ann")))
        assert page._thread.is_alive
        if path.is_dir() and not path.is_symlink():
            path.rename(place.runs_dir.parent / "elsewhere")
        path.unlink(missing_ok=True)
        wait_until("the queue having no trouble", lambda: page.trouble is None, 60)
    finally:
        page.close()


def _or_error(action: Any) -> Any:
    """Return the result of an action, or its OSError or ValueError."""
    try:
        return action()
    except (OSError, ValueError) as error:
        return error


def test_an_error_of_any_kind_is_told_and_the_next_pass_comes(
    place: Place, quick, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    page = place.page()
    num_passes = 0
    really = page.tick

    def breaks() -> None:
        nonlocal num_passes
        num_passes += 1
        if num_passes < 4:
            raise KeyError("something nobody has thought of")
        really()

    monkeypatch.setattr(page, "tick", breaks)
    page.begin()
    wait_until("the trouble being told", lambda: page.trouble is not None, 60)
    assert page.trouble == "An error of the page itself (KeyError)."
    assert "something nobody has thought of" in caplog.text, "the log says where"
    wait_until("the next passes", lambda: num_passes >= 4 and page.trouble is None, 60)
    assert page._thread.is_alive
    page.close()


def test_a_queue_nobody_looks_after_is_shown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    page = place.page()
    assert not page._thread.is_alive, "its thread has not begun"
    monkeypatch.setattr(page, "tick", lambda: time.sleep(3600))
    page.begin()
    wait_until("the thread", lambda: page._thread.is_alive, 60)
    monkeypatch.setattr(threads, "STUCK_AFTER_S", 0.1)
    wait_until("the page saying that it is stuck", lambda: "a disk may hang" in (page.trouble or ""), 60)


def test_an_unwritable_run_holds_nobody_back(place: Place, quick, monkeypatch: pytest.MonkeyPatch) -> None:
    page = place.page()
    stuck, good = make_run(place.runs_dir), make_run(place.runs_dir)
    for run in (stuck, good):
        tickets.write_queued(run, Ticket(person="ann", kind="cpu", num_ranks=2, asked_unix_s=1.0))
    really = tickets.write_queued

    def write(run: RunDirectory, ticket: Ticket) -> None:
        if run.run_id == stuck.run_id:
            raise PermissionError(13, "Permission denied", str(run.queued))
        really(run, ticket)

    monkeypatch.setattr(tickets, "write_queued", write)
    page.begin()
    place.supervisors.has_begun(good)
    page.close()
