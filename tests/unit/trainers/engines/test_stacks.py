"""Tests of stack traces of ranks:

parsing the output of py-spy and faulthandler, and finding the hung rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, wait_until
from trainers.contract import heartbeats
from trainers.contract.config import Config
from trainers.contract.heartbeats import COMPUTING, Answer, Beat, Collective, Group, Place
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import HeartbeatBoard, gaps
from trainers.engines.local import hang_watch, stacks
from trainers.engines.local.hang_watch import RankWatch, Suspicion
from trainers.engines.local.stacks import Frame, Ranks, Stacks, Thread
from trainers.machine.processes import Effort

LIBRARY = "/x/.venv/lib/python3.11/site-packages/torch"
ASLEEP = Frame(file="/home/ann/models/mine.py", line=23, function="forward")
IN_LOOP = Frame(file=f"{REPOSITORY}/trainers/loop.py", line=31, function="train")
IN_LINEAR = Frame(file=f"{LIBRARY}/nn/modules/linear.py", line=125, function="forward")
IN_BARRIER = Frame(file=f"{LIBRARY}/distributed/distributed_c10d.py", line=9, function="barrier")
IN_BACKWARD = Frame(file=f"{LIBRARY}/autograd/graph.py", line=979, function="_engine_run_backward")
IN_PRE_FORWARD = Frame(file=f"{LIBRARY}/nn/parallel/distributed.py", line=9, function="_pre_forward")
IN_DDP = Frame(file=f"{LIBRARY}/nn/parallel/distributed.py", line=9, function="forward")
IN_SYNCHRONIZE = Frame(file=f"{LIBRARY}/cuda/__init__.py", line=1, function="synchronize")
IN_CUDA_INIT = Frame(file=f"{LIBRARY}/cuda/__init__.py", line=1, function="_lazy_init")
JOINING = (
    Frame(file="/usr/lib/python3.11/threading.py", line=1, function="_wait_for_tstate_lock"),
    Frame(file="/usr/lib/python3.11/threading.py", line=2, function="join"),
    Frame(file=f"{REPOSITORY}/trainers/checkpoint/save_and_restore.py", line=3, function="wait"),
)
WRITING = Frame(file=f"{REPOSITORY}/trainers/checkpoint/checkpoint_writer.py", line=4, function="_gather")


def standing(*frames: Frame, other: tuple[Frame, ...] = ()) -> Stacks:
    """Return the stacks of a rank whose main thread has these frames, innermost first."""
    threads = [Thread(name="MainThread", frames=frames)]
    if other:
        threads.append(Thread(name="checkpoint-writer", frames=other))
    return Stacks(threads=tuple(threads), source="Made up.")


def watches(*stopped: int, num_ranks: int = 2) -> list[RankWatch]:
    """Return the watches of ranks that have been silent for 20 s; some are stopped."""
    found = []
    for rank in range(num_ranks):
        beat = Beat(count=9, pid=1, step=4 + rank, doing=COMPUTING)
        used = Effort(cpu_s=1.0, wanted_s=1.0, io_bytes=0, is_stopped=rank in stopped, waits_for_disk=False)
        found.append(RankWatch(rank, beat=beat, effort=used, silent_s=20.0, idle_s=20.0))
    return found


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ((IN_PRE_FORWARD, IN_DDP, IN_LOOP), True),
        ((IN_LINEAR, IN_DDP, IN_LOOP), False),
        ((ASLEEP, IN_LOOP), False),
        ((IN_BARRIER, ASLEEP, IN_LOOP), True),
        ((IN_BACKWARD, IN_LOOP), True),
        ((ASLEEP, IN_BACKWARD, IN_LOOP), False),
        ((IN_SYNCHRONIZE, IN_LOOP), True),
        ((IN_CUDA_INIT, IN_LOOP), False),
    ],
    ids=[
        "buffers of DDP",
        "computes within DDP",
        "own code",
        "collective",
        "backward",
        "own code within backward",
        "device",
        "driver",
    ],
)
def test_rank_waits_for_the_others_where_nothing_of_its_own_lies_between(
    frames: tuple[Frame, ...], waits: bool
) -> None:
    assert standing(*frames).is_waiting is waits


def test_rank_that_waits_for_its_own_save_stands_where_the_save_stands() -> None:
    found = standing(*JOINING, IN_LOOP, other=(IN_BARRIER, WRITING))
    assert found.is_waiting
    assert str(found.place) == "trainers/checkpoint/checkpoint_writer.py:4, _gather"
    assert not standing(*JOINING, IN_LOOP, other=(WRITING,)).is_waiting


def test_ranks_at_one_line_are_not_said_to_disagree() -> None:
    """Both ranks are in the same collective of the same step, as during a network failure."""
    there = {rank: standing(IN_BACKWARD, IN_LOOP) for rank in (0, 1)}
    cause = hang_watch.describe((0, 1), watches(), there)
    assert "at the same line" in cause.message
    assert "different" not in cause.message and "same order" not in cause.hint


def board_with_beats(num_ranks: int) -> HeartbeatBoard:
    board = HeartbeatBoard(num_ranks)
    for rank in range(num_ranks):
        Place(board.address, rank).beat(COMPUTING, 4)
    return board


@pytest.mark.parametrize(
    ("is_on_gpu", "stands", "is_at_work"),
    [
        (False, standing(IN_SYNCHRONIZE, IN_LOOP), True),
        (True, standing(IN_SYNCHRONIZE, IN_LOOP), False),
        (True, standing(IN_LINEAR, IN_LOOP), True),
        (True, None, False),
    ],
    ids=["a core", "a core, but it waits for its GPU", "a core, for its own", "unreadable"],
)
def test_rank_that_takes_a_core_is_at_work_unless_it_waits_for_its_gpu(
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    is_on_gpu: bool,
    stands: Stacks | None,
    is_at_work: bool,
) -> None:
    monkeypatch.setattr(stacks, "read_at_once", lambda _pid: stands)
    monkeypatch.setattr(hang_watch, "ANSWER_WITHIN_S", 0.0)
    subject = hang_watch.HangWatch(run, Config(), Ranks(run, board_with_beats(1)))
    beat = Beat(count=9, pid=1, step=4, doing=COMPUTING, is_on_gpu=is_on_gpu)
    subject._watches = [RankWatch(0, beat=beat, silent_s=10.0, idle_s=0.0)]
    assert subject.is_at_work() is is_at_work
    subject._watches = [RankWatch(0, beat=beat, silent_s=10.0, idle_s=10.0)]
    assert not subject.is_at_work()
    subject._watches = [RankWatch(0, beat=beat)]
    assert subject.is_at_work(), "it beats"


@pytest.mark.parametrize("goes_on", [False, True])
def test_rank_that_has_gone_on_while_its_stack_was_read_does_not_hang(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    board = HeartbeatBoard(1)
    place = Place(board.address, 0)
    place.beat(COMPUTING, 4)
    subject = hang_watch.HangWatch(run, Config(), Ranks(run, board))
    subject._watches = [RankWatch(0, beat=board.read(0), silent_s=100.0, idle_s=100.0)]

    def slow_read(_pid: int, _log: Path) -> Stacks:
        if goes_on:
            place.beat(COMPUTING, 5)
        return standing(IN_LINEAR, IN_LOOP)

    monkeypatch.setattr(stacks, "read", slow_read)
    monkeypatch.setattr(hang_watch, "ANSWER_WITHIN_S", 0.0)
    found = subject._examine(Suspicion(ranks=(0,), is_certain=True))
    assert (found is None) is goes_on


ALL_REDUCE = Collective(number=418, name="all-reduce", dtype="float32", num_bytes=1_200_000)
BROADCAST = Collective(number=418, name="broadcast", dtype="float32", num_bytes=40)
BEFORE = Collective(number=417, name="all-reduce", dtype="float32", num_bytes=40)
DEADLOCK = Suspicion(ranks=(), is_certain=False, may_be_deadlock=True)


def view(newest: Collective, *, is_in_it: bool = True, num_ranks: int = 3, name: str = "0") -> Group:
    """Return a rank's view of a group of all ranks."""
    ranks = tuple(range(num_ranks))
    return Group(name=name, ranks=ranks, newest=newest, unfinished=newest if is_in_it else None)


def test_rank_that_waits_in_another_group_is_the_one_the_many_wait_for() -> None:
    there = {rank: standing(IN_SYNCHRONIZE, IN_LOOP) for rank in range(3)}
    elsewhere = Group(name="1", ranks=(1, 2), newest=BROADCAST, unfinished=BROADCAST)
    views = {
        0: [view(ALL_REDUCE)],
        1: [view(ALL_REDUCE), Group(name="1", ranks=(1, 2))],
        2: [view(BEFORE, is_in_it=False), elsewhere],
    }
    assert hang_watch.blocking_ranks(DEADLOCK, watches(num_ranks=3), there, views) == (2,)
    assert "rank 2 never entered all-reduce 418 (float32, 1.2 MB), in which ranks 0 and 1 wait" in [
        str(gap) for gap in gaps(views)
    ]


@pytest.mark.parametrize("is_certain", [False, True])
def test_rank_whose_launch_queue_is_full_is_not_blamed_beside_the_one_that_never_came(
    is_certain: bool,
) -> None:
    """Rank 0 has launched the next step and blocks in the model; rank 1 sleeps before the collective."""
    there = {0: standing(IN_LINEAR, IN_LOOP), 1: standing(ASLEEP, IN_LOOP)}
    views = {
        0: [view(ALL_REDUCE, num_ranks=2)],
        1: [view(BEFORE, is_in_it=False, num_ranks=2)],
    }
    on_gpus = [replace(watch, beat=replace(watch.beat, is_on_gpu=True)) for watch in watches() if watch.beat]
    suspicion = Suspicion(ranks=(0, 1), is_certain=is_certain)
    assert hang_watch.blocking_ranks(suspicion, on_gpus, there, views) == (1,)
    assert hang_watch.blocking_ranks(suspicion, watches(), there, views) == (0, 1), (
        "on the CPU nothing is queued"
    )
    assert hang_watch.blocking_ranks(suspicion, on_gpus, there) == (0, 1), "and without the recorder"


def test_kernel_that_never_ends_is_told_though_both_hosts_block_on_full_launch_queues() -> None:
    there = {rank: standing(IN_LINEAR, IN_LOOP) for rank in (0, 1)}
    views = {rank: [view(ALL_REDUCE, num_ranks=2)] for rank in (0, 1)}
    on_gpus = [replace(watch, beat=replace(watch.beat, is_on_gpu=True)) for watch in watches() if watch.beat]
    suspicion = Suspicion(ranks=(0, 1), is_certain=True)
    assert hang_watch.blocking_ranks(suspicion, on_gpus, there, views, behind_on_gpu=(1,)) == (1,)


def test_a_rank_whose_launch_queue_is_full_is_not_at_work_when_stop_asks(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "read_at_once", lambda _pid: standing(IN_LINEAR, IN_LOOP))
    board = board_with_beats(1)
    subject = hang_watch.HangWatch(run, Config(), Ranks(run, board))
    beat = Beat(count=9, pid=1, step=4, doing=COMPUTING, is_on_gpu=True)
    subject._watches = [RankWatch(0, beat=beat, silent_s=10.0)]
    answer = heartbeats.to_bytes(Answer(groups=(view(ALL_REDUCE, num_ranks=1),)))
    monkeypatch.setattr(board, "answer", lambda _rank: answer)
    assert not subject.is_at_work()


def test_a_kernel_that_never_ends_is_told_by_what_its_gpu_has_not_computed() -> None:
    """All hosts have the same stack and are in the same collective; only the progress of the GPUs differs."""
    there = {rank: standing(IN_SYNCHRONIZE, IN_LOOP) for rank in range(2)}
    same = {rank: [view(ALL_REDUCE, num_ranks=2)] for rank in range(2)}
    seen, everybody = watches(), Suspicion(ranks=(0, 1), is_certain=True)
    for watched in seen:
        assert watched.beat is not None
        watched.beat = replace(watched.beat, is_on_gpu=True)
    culprits = hang_watch.blocking_ranks(everybody, seen, there, same, (1,))
    assert culprits == (1,)
    cause = hang_watch.describe(culprits, seen, there, gaps(same), (1,))
    assert cause.rank == 1
    assert "the GPU of rank 1 never finished a backward pass, and the others wait" in cause.message
    assert "kernel" in cause.hint
    elsewhere = gaps({0: [view(ALL_REDUCE, num_ranks=2)], 1: [view(BROADCAST, num_ranks=2)]})
    mismatch = hang_watch.describe((1,), seen, there, elsewhere, (1,))
    assert "kernel" not in mismatch.hint and "same collectives" in mismatch.hint, "that says more"
    nobody_knows = hang_watch.describe(everybody.ranks, seen, there, gaps(same))
    assert "no rank makes progress" in nobody_knows.message and "something else" not in nobody_knows.message


def test_of_two_that_wait_for_each_other_both_are_named_as_missing() -> None:
    """torch does not know the all-reduce in shared memory; its barrier alone would blame the wrong rank."""
    in_gradients = Frame(file="/x/trainers/parallel/shared_all_reduce.py", line=157, function="_wait_for")
    there = {0: standing(in_gradients, IN_LOOP), 1: standing(IN_BARRIER, IN_LOOP)}
    views = {1: [view(ALL_REDUCE, num_ranks=2)], 0: [view(BEFORE, is_in_it=False, num_ranks=2)]}
    cause = hang_watch.describe((0, 1), watches(), there, gaps(views))
    assert cause.message.endswith(
        "Rank 0 never entered all-reduce 418 (float32, 1.2 MB), in which rank 1 waits. "
        "Rank 1 never entered the all-reduce of the gradients, in which rank 0 waits."
    )


def test_py_spys_words_are_read() -> None:
    raw = [
        {"thread_name": "telemetry", "frames": []},
        {
            "thread_name": "MainThread",
            "frames": [{"filename": "a.py", "line": 3, "name": "Model.f", "locals": None}],
        },
    ]
    main, other = stacks.threads_of_json(json.dumps(raw))
    assert main.frames == (Frame(file="a.py", line=3, function="f"),)
    assert other.name == "telemetry"


SLEEPS = """
import os, sys, threading, time
os.environ["RANK"] = "0"
from trainers.contract import heartbeats
heartbeats.begin_heartbeats()

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
