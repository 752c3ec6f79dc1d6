"""Files written by another machine are visible, regardless of this machine's NFS cache."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddp_gui.events.run_view import RunView
from tests.harness import create_run, wait_until
from tests.nfs_memory import NfsMemory
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.data.own import cache
from trainers.engines.local import stopping
from trainers.engines.local.engine import LocalEngine
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.files import plain_files

SOON_S = 10.0


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


def test_nodes_find_what_the_others_write(run: RunDirectory, memory: NfsMemory) -> None:
    folder = NodesFolder(run, "1-0")
    assert not folder.is_there()
    with memory.elsewhere():
        folder.make()
    assert folder.is_there() and folder.read("0") is None
    with memory.elsewhere():
        folder.write("0", {"count": 1})
    assert folder.read("0") == {"count": 1}


def test_a_first_node_that_reports_is_not_taken_for_deaf(
    run: RunDirectory, memory: NfsMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report file is replaced every second under a name that is in this machine's cache."""
    monkeypatch.setattr(restarts, "PATIENCE_OF_STOP_S", 3.0)
    monkeypatch.setattr(stopping, "POLL_EVERY_S", 0.02)
    monkeypatch.setattr(stopping, "status_on", lambda *_: Status(state="running"))
    folder, ended = NodesFolder(run, "1-0"), threading.Event()
    with memory.elsewhere():
        folder.make()
    restarts.watch_for_stop(LocalEngine(), run, lambda _status: ended.set())
    for count in range(80):
        with memory.elsewhere():
            folder.write("0", {"count": count})
        time.sleep(0.05)
    assert not ended.is_set()
    assert ended.wait(SOON_S), "but one that reports nothing more is"
    watch = f"stop-{run.path}"
    wait_until("its end", lambda: all(each.name != watch for each in threading.enumerate()), SOON_S)


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
