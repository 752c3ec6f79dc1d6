"""Files written by another machine are visible, regardless of this machine's NFS cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddp_gui.events.run_view import RunView
from tests.harness import create_run
from tests.nfs_memory import NfsMemory
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.data.own import cache
from trainers.files import plain_files


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(tmp_path, num_nodes=2, nproc_per_node=1)


@pytest.fixture
def memory(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> NfsMemory:
    """Simulate the NFS cache of this machine for the run's folder."""
    return NfsMemory(run.path, monkeypatch)


def test_a_file_is_seen_as_it_is_where_a_stat_shows_what_it_was(run: RunDirectory, memory: NfsMemory) -> None:
    path = run.path / "grows"
    with pytest.raises(FileNotFoundError):
        plain_files.stat_uncached(path)
    for text in ("a", "ab"):
        with memory.elsewhere():
            path.write_text(text)
        if text == "a":
            with pytest.raises(FileNotFoundError):
                os.stat(path)  # noqa: PTH116
        else:
            assert path.stat().st_size == 1
        assert plain_files.stat_uncached(path).st_size == len(text)


def test_a_run_that_another_machine_trains_is_followed(run: RunDirectory, memory: NfsMemory) -> None:
    view = RunView(run, 10)
    assert not view.has_grown() and not view.catch_up()
    with memory.elsewhere():
        file = EventFile(run.events)
    for num_events in (1, 2):
        with memory.elsewhere():
            file.append([(1.0, "state", {"state": "running", "reason": ""})])
        assert view.has_grown() and view.unread()[0] > 0
        assert view.catch_up() and view.series.next_seq == num_events
    file.close()


def test_data_that_another_machine_prepared_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    monkeypatch.setattr(cache, "cache_folder", lambda: folder)
    memory = NfsMemory(folder, monkeypatch)
    made: list[str] = []

    def make(aside: Path) -> dict[str, Any]:
        made.append(aside.name)
        np.arange(3, dtype=np.int64).tofile(aside / "numbers.bin")
        return {"arrays": {"numbers": {"dtype": "int64", "shape": [3]}}}

    assert cache.find("one") is None  # the miss is now cached
    with memory.elsewhere():
        cache.find_or_make("one", make)
    assert cache.find("one") is None
    cache.find_or_make("one", make)
    assert len(made) == 1
