"""Where ranks stand: read from what py-spy and faulthandler say, and who of them hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, wait_until
from trainers import stacks, watch
from trainers.contract.effort import Effort
from trainers.contract.heartbeats import COMPUTING, Beat
from trainers.hang import RankWatch, Suspicion
from trainers.stacks import Frame, Stacks, Thread

LIBRARY = "/x/.venv/lib/python3.11/site-packages/torch"
ASLEEP = Frame(file="/home/ann/models/mine.py", line=23, function="forward")
IN_LOOP = Frame(file=f"{REPOSITORY}/trainers/loop.py", line=31, function="train")
IN_LINEAR = Frame(file=f"{LIBRARY}/nn/modules/linear.py", line=125, function="forward")
IN_BARRIER = Frame(file=f"{LIBRARY}/distributed/distributed_c10d.py", line=9, function="barrier")
IN_BACKWARD = Frame(file=f"{LIBRARY}/autograd/graph.py", line=979, function="_engine_run_backward")
JOINING = (
    Frame(file="/usr/lib/python3.11/threading.py", line=1, function="_wait_for_tstate_lock"),
    Frame(file="/usr/lib/python3.11/threading.py", line=2, function="join"),
    Frame(file=f"{REPOSITORY}/trainers/checkpoint.py", line=3, function="wait"),
)
WRITING = Frame(file=f"{REPOSITORY}/trainers/checkpoint_writer.py", line=4, function="_gather")


def standing(*frames: Frame, other: tuple[Frame, ...] = ()) -> Stacks:
    """Return the stacks of a rank whose main thread stands in the first of these calls."""
    threads = [Thread(name="MainThread", frames=frames)]
    if other:
        threads.append(Thread(name="checkpoint-writer", frames=other))
    return Stacks(threads=tuple(threads), source="Made up.")


def watches(*stopped: int, num_ranks: int = 2) -> list[RankWatch]:
    """Return what was seen of ranks that are silent for 20 s; some are stopped."""
    found = []
    for rank in range(num_ranks):
        beat = Beat(count=9, pid=1, step=4 + rank, doing=COMPUTING)
        used = Effort(cpu_s=1.0, wanted_s=1.0, io_bytes=0, is_stopped=rank in stopped, waits_for_disk=False)
        found.append(RankWatch(rank, beat=beat, effort=used, silent_s=20.0, idle_s=20.0))
    return found


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ((ASLEEP, IN_LOOP), False),
        ((IN_LINEAR, ASLEEP, IN_LOOP), False),
        ((IN_BARRIER, ASLEEP, IN_LOOP), True),
        ((IN_BACKWARD, IN_LOOP), True),
        ((ASLEEP, IN_BACKWARD, IN_LOOP), False),
    ],
    ids=["own code", "computes for own code", "collective", "backward", "own code within backward"],
)
def test_rank_waits_for_the_others_where_nothing_of_its_own_lies_between(
    frames: tuple[Frame, ...], waits: bool
) -> None:
    assert standing(*frames).is_waiting is waits


def test_rank_that_waits_for_its_own_save_stands_where_the_save_stands() -> None:
    found = standing(*JOINING, IN_LOOP, other=(IN_BARRIER, WRITING))
    assert found.is_waiting
    assert str(found.place) == "trainers/checkpoint_writer.py:4, _gather"
    assert not standing(*JOINING, IN_LOOP, other=(WRITING,)).is_waiting


def test_place_is_the_innermost_line_that_is_no_librarys() -> None:
    assert str(standing(IN_LINEAR, ASLEEP, IN_LOOP).place) == "/home/ann/models/mine.py:23, forward"
    assert str(standing(IN_BACKWARD, IN_LOOP).place) == "trainers/loop.py:31, train"


def test_stopped_rank_is_the_one_and_the_sentence_says_so() -> None:
    there = {0: standing(IN_BACKWARD, IN_LOOP), 1: standing(IN_BACKWARD, IN_LOOP)}
    seen = watches(1)
    assert watch.culprits_of(Suspicion(ranks=(1,), is_certain=True), seen, there) == (1,)
    cause = watch.describe((1,), seen, there)
    assert cause.message == (
        "The run hangs: rank 1 was stopped from outside (SIGSTOP). Nothing has come for 20 s: rank 1 stands "
        "at step 6, going forward and backward, in trainers/loop.py:31, train."
    )
    assert (cause.code, cause.rank) == ("hang", 1)
    assert cause.traceback is not None and "_engine_run_backward" in cause.traceback


def test_rank_that_sleeps_is_the_one_and_not_the_one_that_waits() -> None:
    there = {0: standing(IN_BACKWARD, IN_LOOP), 1: standing(ASLEEP, IN_LOOP)}
    for is_certain, ranks in ((True, (0, 1)), (False, (1,))):
        suspicion = Suspicion(ranks=ranks, is_certain=is_certain)
        assert watch.culprits_of(suspicion, watches(), there) == (1,)
    cause = watch.describe((1,), watches(), there)
    assert "rank 1 stands still, and the others wait" in cause.message
    assert "/home/ann/models/mine.py:23, forward" in cause.message and "rank 0" not in cause.message


def test_ranks_that_wait_for_each_other_are_all_named() -> None:
    there = {0: standing(IN_BARRIER, ASLEEP, IN_LOOP), 1: standing(IN_BACKWARD, IN_LOOP)}
    culprits = watch.culprits_of(Suspicion(ranks=(0, 1), is_certain=True), watches(), there)
    assert culprits == (0, 1)
    cause = watch.describe(culprits, watches(), there)
    assert "wait for each other" in cause.message
    assert "mine.py:23" in cause.message and "loop.py:31" in cause.message
    assert "same order" in cause.hint
    assert cause.rank == 0, "the one that has come least far"


def test_rank_that_waits_for_one_that_is_alive_is_no_culprit() -> None:
    there = {0: standing(ASLEEP, IN_LOOP), 1: standing(IN_BACKWARD, IN_LOOP)}
    assert watch.culprits_of(Suspicion(ranks=(1,), is_certain=False), watches(), there) == ()
    unreadable = {1: Stacks(threads=(), source="Its stacks could not be read.")}
    assert watch.culprits_of(Suspicion(ranks=(1,), is_certain=False), watches(), unreadable) == ()


def test_hang_without_any_stack_is_told_all_the_same() -> None:
    culprits = watch.culprits_of(Suspicion(ranks=(0, 1), is_certain=True), watches(), {})
    cause = watch.describe(culprits, watches(), {})
    assert "no rank goes on" in cause.message and cause.traceback is None


def test_py_spys_words_are_read() -> None:
    raw = [
        {"thread_name": "telemetry", "frames": []},
        {
            "thread_name": "MainThread",
            "frames": [{"filename": "a.py", "line": 3, "name": "f", "locals": None}],
        },
    ]
    main, other = stacks.threads_of_json(json.dumps(raw))
    assert main.frames == (Frame(file="a.py", line=3, function="f"),)
    assert other.name == "telemetry"


SLEEPS = """
import os, sys, threading, time
os.environ["RANK"] = "0"
from trainers import heartbeat
heartbeat.begin()

def stands_here():
    time.sleep(600)

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
stands_here()
"""


@pytest.mark.parametrize("by", ["py-spy", "the rank itself"])
def test_stacks_of_a_real_process(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "the rank itself":
        monkeypatch.setattr(stacks, "_by_py_spy", lambda pid: ((), "not allowed"))
    log = tmp_path / "rank_0.log"
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-c", SLEEPS], cwd=REPOSITORY, stdout=output, stderr=output
        ) as process,
    ):
        try:
            wait_until("the process", lambda: b"ready" in log.read_bytes(), 60)
            found = stacks.read(process.pid, log)
            if by == "py-spy" and not found.source.startswith("Read by py-spy"):
                pytest.skip(f"py-spy may not look here: {found.source}")
        finally:
            process.kill()
    assert found.place is not None and found.place.function == "stands_here", found.text()
    assert len(found.threads) == 2
    assert by in found.source
