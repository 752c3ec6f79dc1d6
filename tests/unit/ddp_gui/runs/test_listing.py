"""The list of runs: reloading, caching, updates sent to a page, and the notes on a run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events.event_reader import Digest
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import listing as listing_module
from ddp_gui.runs.listing import Listing, RunNotes
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory


@pytest.fixture
def listing(tmp_path: Path, catalogue: Catalogue) -> Listing:
    return store_of(tmp_path / "runs", catalogue).listing


@pytest.fixture
def runs_dir(listing: Listing) -> Path:
    return listing.runs_dir


def settle(runs_dir: Path) -> None:
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
    second = make_run(runs_dir)
    runs[0].path.rename(runs_dir / ".elsewhere")
    news = listing.changes(news.version)
    assert [row["run_id"] for row in news.rows] == [second.run_id]
    assert news.gone == {runs[0].run_id: None}
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


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b'{"format": 1}'),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"state"', b'"stale"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":0')),
    ],
)
def test_a_spoilt_copy_is_fine(listing: Listing, runs_dir: Path, catalogue: Catalogue, spoil: Any) -> None:
    make_run(runs_dir)
    settle(runs_dir)
    rows = listing.rows()
    listing.save()
    spoil(listing_module.cache_path(runs_dir))
    assert store_of(runs_dir, catalogue).listing.rows() == rows


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "x" * 201}, "name is .* allowed: a text of at most 200 characters"),
        ({"name": "two\nlines"}, "name is .* allowed: one line of text"),
        ({"name": 5}, "name is 5; allowed: a text"),
        ({"name": "\ud800"}, "half a surrogate pair"),
        ({"tags": "one"}, "tags is 'one'; allowed: a list of texts"),
        ({"tags": ["a,b"]}, "without a comma"),
        ({"tags": ["x" * 41]}, "at most 40 characters"),
        ({"tags": [str(n) for n in range(21)]}, "tags are 21; allowed: at most 20"),
        ({"note": "x" * 10_001}, "at most 10,000 characters"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        listing_module.change_notes(RunNotes(), **given)


@pytest.mark.parametrize("text", ["{half", "[]", '{"name": [1], "tags": {"a": 1}, "note": null}', "\xff"])
def test_a_file_of_anybodys_making_is_left_aside(run: RunDirectory, text: str) -> None:
    (run.path / listing_module.FILE).write_text(text, encoding="latin-1")
    assert listing_module.read_notes(run) == RunNotes()
