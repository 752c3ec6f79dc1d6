"""Tests of the list of runs: reloading, caching, and the updates sent to a page."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.events.event_reader import Digest
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import listing as listing_module
from ddp_gui.runs.listing import Listing
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory


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
