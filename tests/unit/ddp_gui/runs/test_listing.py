"""Tests of the list of runs: reloading, caching, and the updates sent to a page."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.events import event_reader
from ddp_gui.events.event_reader import Digest
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import listing as listing_module
from ddp_gui.runs.listing import Listing, RunNotes
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.files import plain_files


@pytest.fixture
def listing(tmp_path: Path, catalogue: Catalogue) -> Listing:  # noqa: F811
    return store_of(tmp_path / "runs", catalogue).listing


@pytest.fixture
def runs_dir(listing: Listing) -> Path:
    return listing.runs_dir


def settle(runs_dir: Path) -> None:
    """Set all modification times to a minute ago."""
    minute_ago = time.time() - 60
    for path in [runs_dir, *runs_dir.rglob("*")]:
        os.utime(path, (minute_ago, minute_ago))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the runs whose events were read, in order."""
    found: list[str] = []
    catch_up = Digest.catch_up

    def noted(digest: Digest, path: Path, time_limit_s: float) -> bool:
        found.append(path.parent.name)
        return catch_up(digest, path, time_limit_s)

    monkeypatch.setattr(Digest, "catch_up", noted)
    return found


def add_step(run: RunDirectory, step: int) -> None:
    file = EventFile(run.events)
    fields = {"step": step, "epoch": 0, "loss": 0.25, "lr": 0.1, "grad_norm": None}
    file.append([(300.0, "step", fields | {"samples_per_s": 1.0, "step_time_s": 1.0, "data_time_s": 0.0})])
    file.close()


def test_only_what_changed_is_read_and_told(listing: Listing, runs_dir: Path, reads: list[str]) -> None:
    runs = [make_run(runs_dir) for _ in range(3)]
    settle(runs_dir)
    whole = listing.changes()
    assert whole.is_whole
    assert len(whole.rows) == 3
    reads.clear()
    listing.rows()
    assert reads == []
    add_step(runs[1], 11)
    rows = {row["run_id"]: row for row in listing.rows()}
    assert reads == [runs[1].run_id]
    assert rows[runs[1].run_id]["step"] == 11
    news = listing.changes(whole.version)
    assert not news.is_whole
    assert [row["run_id"] for row in news.rows] == [runs[1].run_id]
    assert listing.changes(news.version).rows == []


def test_a_live_run_is_looked_at_each_time_and_its_lock_counts(listing: Listing, runs_dir: Path) -> None:
    run = make_run(runs_dir, ended="running")
    owner = run.acquire_lock()
    settle(runs_dir)
    version = listing.changes().version
    assert listing.row(run.run_id)["state"] == "running"
    os.close(owner)  # killed: no file changes
    (row,) = listing.changes(version).rows
    assert row["state"] == "lost"


def test_a_new_run_and_one_that_went_are_told_at_once(listing: Listing, runs_dir: Path) -> None:
    first = make_run(runs_dir)
    settle(runs_dir)
    version = listing.changes().version
    second = make_run(runs_dir)
    first.path.rename(runs_dir / ".elsewhere")
    news = listing.changes(version)
    assert [row["run_id"] for row in news.rows] == [second.run_id]
    assert news.gone == {first.run_id: None}


def test_a_version_of_another_time_gets_everything(listing: Listing, runs_dir: Path) -> None:
    make_run(runs_dir)
    version = listing.changes().version
    for unknown in (-1, 0, version + 10_000):
        assert listing.changes(unknown).is_whole


def test_words_written_on_a_run_are_in_its_row(listing: Listing, runs_dir: Path) -> None:
    run = make_run(runs_dir)
    settle(runs_dir)
    assert listing.changes().rows[0]["name"] == run.run_id
    listing_module.write_notes(run, RunNotes(name="<b>", tags=("a",), note="n"))
    (row,) = listing.rows()
    assert (row["name"], row["tags"], row["note"]) == ("<b>", ["a"], "n")


def test_a_resumed_run_is_seen_by_its_status(listing: Listing, runs_dir: Path) -> None:
    run = make_run(runs_dir)
    settle(runs_dir)
    listing.changes()
    owner = run.acquire_lock()
    run.write_status(Status(state="running"))
    (row,) = listing.rows()
    os.close(owner)
    assert row["state"] == "running"


def test_what_was_written_a_moment_ago_is_read_again(listing: Listing, runs_dir: Path) -> None:
    run = make_run(runs_dir)
    assert listing.changes().rows[0]["state"] == "stopped"
    before = plain_files.stats_of(str(run.path))
    run.status.write_text(run.status.read_text().replace('"stopped"', '"failed"'))
    assert plain_files.stats_of(str(run.path)) == before, "a look cannot tell"
    assert listing.rows()[0]["state"] == "failed"


def test_reading_stops_after_a_moment_and_goes_on(
    listing: Listing, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(runs_dir) for _ in range(3)]
    for age, run in enumerate(runs):
        os.utime(run.config, (1000 - age, 1000 - age))
    clock = iter(range(10_000))
    monkeypatch.setattr(listing_module.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(listing_module, "READ_AT_MOST_S", 1.5)
    first = listing.changes()
    assert (len(first.rows), first.num_unread) == (1, 2)
    assert first.rows[0]["run_id"] == runs[0].run_id, "the newest first"
    assert len(listing.rows()) == 3, "who asks for all gets all"


def restarted(listing: Listing, catalogue: Catalogue) -> Listing:  # noqa: F811
    return store_of(listing.runs_dir, catalogue).listing


def test_after_a_restart_nothing_is_read_again(
    listing: Listing,
    runs_dir: Path,
    catalogue: Catalogue,  # noqa: F811
    reads: list[str],
) -> None:
    run = make_run(runs_dir)
    make_run(runs_dir)
    settle(runs_dir)
    rows = listing.rows()
    listing.save()
    reads.clear()
    again = restarted(listing, catalogue)
    assert again.rows() == rows
    assert again.changes().rows[0]["curve"] is not None
    assert reads == []
    add_step(run, 11)
    assert {row["step"] for row in again.rows()} == {10, 11}, "and it goes on from there"
    assert reads == [run.run_id]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b'{"format": 1}'),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"marks"', b'"remarks"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"state"', b'"stale"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":0')),
    ],
)
def test_a_spoilt_copy_does_no_harm(
    listing: Listing,
    runs_dir: Path,
    catalogue: Catalogue,  # noqa: F811
    spoil: Any,
) -> None:
    make_run(runs_dir)
    settle(runs_dir)
    rows = listing.rows()
    listing.save()
    spoil(listing_module.path_in(runs_dir))
    assert restarted(listing, catalogue).rows() == rows


def test_a_spoilt_digest_is_read_anew(listing: Listing, runs_dir: Path, catalogue: Catalogue) -> None:  # noqa: F811
    run = make_run(runs_dir)
    settle(runs_dir)
    listing.rows()
    listing.save()
    path = listing_module.path_in(runs_dir)
    path.write_bytes(path.read_bytes().replace(rb"\"offset\"", rb"\"upset\""))
    add_step(run, 11)
    (row,) = restarted(listing, catalogue).rows()
    assert (row["step"], row["state"]) == (11, "stopped")


def test_the_row_does_not_change_by_being_looked_at(listing: Listing, runs_dir: Path) -> None:
    run = make_run(runs_dir)
    row = listing.row(run.run_id)
    assert listing.row(run.run_id) == row
    with pytest.raises(ValueError, match="there is no run of this id"):
        listing.row("no-such-1")


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"dataset": "own", "data_path": "/home/ann/uploads/flowers.csv"}, "flowers.csv"),
        ({"dataset": "own", "data_path": "/data/pets/"}, "pets"),
        ({"dataset": "own"}, "own"),
        ({"dataset": "no_such_data"}, "no_such_data"),
    ],
)
def test_a_persons_own_data_is_called_by_its_file(config: dict[str, str], label: str) -> None:
    known = SimpleNamespace(own_data={"own": "Your own data"}, datasets={})
    assert listing_module.dataset_label(Config(**config), known) == label  # type: ignore[arg-type]


def test_a_long_file_is_read_in_turns_with_the_other_runs(
    listing: Listing, runs_dir: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up = Digest.catch_up
    # A turn reads one batch.
    monkeypatch.setattr(Digest, "catch_up", lambda digest, path, _: catch_up(digest, path, 0.0))
    monkeypatch.setattr(event_reader, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(listing_module, "READ_AT_MOST_S", 5.0)
    long, short = make_run(runs_dir, until=50), make_run(runs_dir)
    settle(runs_dir)
    rows = {row["run_id"]: row["step"] for row in listing.rows()}
    assert rows == {long.run_id: 50, short.run_id: 10}
    assert reads[: reads.index(short.run_id) + 2].count(long.run_id) <= 2 < reads.count(long.run_id)
    assert listing.changes().num_unread == 0
    reads.clear()
    assert listing.row(long.run_id)["step"] == 50 and reads == [long.run_id]
