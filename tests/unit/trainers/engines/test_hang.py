"""Tests of hangs: silent ranks, missing collectives, and the stacks that name the rank to blame."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.harness import REPOSITORY, wait_until
from trainers.contract.config import Config
from trainers.contract.heartbeats import (
    BUSY_FACTOR,
    COMPUTING,
    Group,
    Heartbeat,
    HeartbeatSlot,
    PendingCollective,
    RankAnswer,
    from_bytes,
    to_bytes,
)
from trainers.contract.rundir import RunDirectory
from trainers.engines import heartbeats
from trainers.engines.heartbeats import Gap, HeartbeatMemory, gaps
from trainers.engines.local import hang_watch, stacks
from trainers.engines.local.hang_watch import RankWatch, Suspicion, find_suspicion
from trainers.engines.local.stacks import Frame, Ranks, Stacks, Thread
from trainers.machine.processes import Effort
from trainers.watch import flight_recorder

LIMIT_S = 20.0
IDLE = 0.01  # CPU use of a waiting rank, in cores


class Job:
    """Two ranks as the supervisor sees them; time advances in steps of one second."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.watches = [RankWatch(rank) for rank in range(num_ranks)]
        self.counts = [1] * num_ranks
        self.cpu_s = [0.0] * num_ranks
        self.in_line_s = [0.0] * num_ranks
        self.is_on_gpu = False

    def pass_second(
        self,
        *,
        beating: tuple[int, ...] = (),
        working: tuple[int, ...] = (),
        at_disk: tuple[int, ...] = (),
        reading: tuple[int, ...] = (),
        in_line: tuple[int, ...] = (),
    ) -> Suspicion | None:
        for rank, watch in enumerate(self.watches):
            self.counts[rank] += rank in beating
            self.cpu_s[rank] += 0.5 if rank in working else IDLE
            self.in_line_s[rank] += 0.95 if rank in in_line else 0.0
            heartbeat = Heartbeat(
                count=self.counts[rank], pid=1, step=4, doing=COMPUTING, is_on_gpu=self.is_on_gpu
            )
            used = Effort(
                cpu_s=self.cpu_s[rank],
                wanted_s=self.cpu_s[rank] + self.in_line_s[rank],
                io_bytes=int(self.cpu_s[rank] * 1e9) if rank in reading else 0,
                is_stopped=False,
                waits_for_disk=rank in at_disk,
            )
            watch.update(heartbeat, used, 1.0)
        return find_suspicion(self.watches, LIMIT_S)

    def pass_seconds(self, seconds: int, **how: tuple[int, ...]) -> tuple[int, Suspicion | None]:
        """Advance the time until there is a suspicion; return the number of seconds and the suspicion."""
        for second in range(1, seconds + 1):
            found = self.pass_second(**how)  # type: ignore[arg-type]
            if found is not None:
                return second, found
        return seconds, None


@pytest.mark.parametrize("how", ["working", "in_line", "at_disk", "reading"])
def test_long_step_of_a_rank_that_is_at_work_is_none_while_the_other_waits(how: str) -> None:
    job = Job()
    _, found = job.pass_seconds(int(LIMIT_S), **{how: (0,)})
    assert found is None
    # Rank 1 waits for rank 0, which its stack shows.
    _, found = job.pass_seconds(60, **{how: (0,)})
    assert found == Suspicion(ranks=(1,), is_certain=False)


def test_nobody_is_waited_for_for_ever() -> None:
    second, found = Job().pass_seconds(10_000, working=(0, 1))
    assert found == Suspicion(ranks=(0, 1), is_certain=True)
    assert second == pytest.approx(BUSY_FACTOR * LIMIT_S, abs=2)


def test_silence_of_all_ranks_on_gpus_is_looked_into_at_the_limit_though_their_processes_work() -> None:
    job = Job()
    job.is_on_gpu = True
    job.pass_second(beating=(0, 1))
    second, found = job.pass_seconds(60, working=(0, 1))
    assert found == Suspicion(ranks=(), is_certain=False, may_be_deadlock=True)
    assert LIMIT_S <= second <= LIMIT_S + 2


def test_ranks_that_have_not_begun_are_no_hang_until_one_has() -> None:
    watches = [RankWatch(0), RankWatch(1)]
    for _ in range(100):
        for watch in watches:
            watch.update(None, None, 1.0)
        assert find_suspicion(watches, LIMIT_S) is None
    watches[0].update(Heartbeat(count=1, pid=1, step=0, doing=0), None, 1.0)
    assert find_suspicion(watches, LIMIT_S) is None, "rank 0 has just begun"


FIRST = PendingCollective(number=1, name="all-reduce", dtype="float32", num_bytes=8)
SECOND = PendingCollective(number=2, name="all-reduce", dtype="float32", num_bytes=1_200_000)
OTHER_SIZE = PendingCollective(number=2, name="all-reduce", dtype="float32", num_bytes=16)


def view(
    newest: PendingCollective | None, unfinished: PendingCollective | None = None, num_ranks: int = 3
) -> list[Group]:
    """Return the groups of a rank that belongs to one group of all ranks."""
    return [Group(name="0", ranks=tuple(range(num_ranks)), newest=newest, unfinished=unfinished)]


def test_nobody_is_missing_where_all_are_in_the_same_or_have_left_it() -> None:
    assert heartbeats.gaps({}) == ()
    assert heartbeats.gaps({rank: view(SECOND) for rank in range(3)}) == ()
    assert heartbeats.gaps({rank: view(SECOND, SECOND) for rank in range(3)}) == ()
    left_it = {0: view(SECOND, SECOND), 1: view(SECOND, SECOND), 2: view(SECOND)}
    assert heartbeats.gaps(left_it) == ()


def test_one_that_never_came_is_missing_and_one_that_says_nothing_is_not() -> None:
    (gap,) = heartbeats.gaps({0: view(SECOND, SECOND), 2: view(FIRST)})
    assert gap == Gap(waiting={0: SECOND}, missing=(2,))
    assert str(gap) == "rank 2 never entered all-reduce 2 (float32, 1.2 MB), in which rank 0 waits"
    (gap,) = heartbeats.gaps({0: view(SECOND, FIRST), 1: view(FIRST, FIRST), 2: view(None)})
    assert gap == Gap(waiting={0: FIRST, 1: FIRST}, missing=(2,)), "the first unfinished one counts"
    assert heartbeats.blamed_ranks([gap]) == (2,)


def test_same_number_and_another_size_is_a_mismatch() -> None:
    found = heartbeats.gaps(
        {0: view(SECOND, SECOND), 1: view(OTHER_SIZE, OTHER_SIZE), 2: view(SECOND, SECOND)}
    )
    assert [gap.is_mismatch for gap in found] == [True]
    assert heartbeats.blamed_ranks(found) == (1,)
    two = heartbeats.gaps({0: view(SECOND, SECOND, 2), 1: view(OTHER_SIZE, OTHER_SIZE, 2)})
    assert heartbeats.blamed_ranks(two) == (), "one against one"


def test_what_a_rank_says_travels_as_bytes_and_nonsense_says_nothing() -> None:
    for said in (RankAnswer(groups=tuple(view(SECOND, FIRST)), gradients_done=7), RankAnswer()):
        assert from_bytes(to_bytes(said)) == said
    without_groups, without_ranks = b'{"groups": 3}', b'{"groups": [{"name": "0"}], "gradients_done": 1}'
    for nonsense in (b"", b"{", b"[3]", without_groups, without_ranks, b"null", b"\xff"):
        assert from_bytes(nonsense) is None


@pytest.fixture
def lone_group(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank, whose collectives always complete."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("lone_group")
def test_torchs_own_recorder_says_what_was_entered_and_left() -> None:
    """Pins a private API of torch, without which hangs are reported without collectives."""
    dist.all_reduce(torch.zeros(250_000))
    dist.broadcast(torch.zeros(3, dtype=torch.int64), 0)

    def retired() -> Sequence[Group] | None:
        # Gloo's own thread retires a collective shortly after `wait` returns.
        found = flight_recorder.recorded_groups()
        assert found is not None
        return None if any(group.unfinished for group in found) else found

    found = wait_until("both collectives being retired", retired, 10)
    (group,) = found
    assert group.ranks == (0,)
    assert group.newest is not None
    assert (group.newest.name, group.newest.dtype, group.newest.num_bytes) == ("broadcast", "int64", 24)
    raw = json.loads(flight_recorder.c10d._dump_fr_trace_json())  # type: ignore[attr-defined]
    names = {"profiling_name", "process_group", "collective_seq_id", "op_id", "is_p2p", "retired"}
    assert names | {"input_dtypes", "input_sizes"} <= raw["entries"][-1].keys()
    assert raw["entries"][-1]["profiling_name"] == "gloo:broadcast"
    assert from_bytes(flight_recorder.flight_record_text(lambda: 3)) == RankAnswer(
        groups=found, gradients_done=3
    )


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
        heartbeat = Heartbeat(count=9, pid=1, step=4 + rank, doing=COMPUTING)
        used = Effort(cpu_s=1.0, wanted_s=1.0, io_bytes=0, is_stopped=rank in stopped, waits_for_disk=False)
        found.append(RankWatch(rank, heartbeat=heartbeat, effort=used, silent_s=20.0, idle_s=20.0))
    return found


WAITS = {
    "buffers of DDP": ((IN_PRE_FORWARD, IN_DDP, IN_LOOP), True),
    "computes within DDP": ((IN_LINEAR, IN_DDP, IN_LOOP), False),
    "own code": ((ASLEEP, IN_LOOP), False),
    "collective": ((IN_BARRIER, ASLEEP, IN_LOOP), True),
    "backward": ((IN_BACKWARD, IN_LOOP), True),
    "own code within backward": ((ASLEEP, IN_BACKWARD, IN_LOOP), False),
    "device": ((IN_SYNCHRONIZE, IN_LOOP), True),
    "driver": ((IN_CUDA_INIT, IN_LOOP), False),
}


@pytest.mark.parametrize(("frames", "waits"), WAITS.values(), ids=WAITS)
def test_rank_waits_for_the_others_where_nothing_of_its_own_lies_between(
    frames: tuple[Frame, ...], waits: bool
) -> None:
    assert standing(*frames).is_waiting is waits


def test_rank_that_waits_for_its_own_save_stands_where_the_save_stands() -> None:
    found = standing(*JOINING, IN_LOOP, other=(IN_BARRIER, WRITING))
    assert found.is_waiting
    assert str(found.location) == "trainers/checkpoint/checkpoint_writer.py:4, _gather"
    assert not standing(*JOINING, IN_LOOP, other=(WRITING,)).is_waiting


def board_with_beats(num_ranks: int) -> HeartbeatMemory:
    board = HeartbeatMemory(num_ranks)
    for rank in range(num_ranks):
        HeartbeatSlot(board.address, rank).write(COMPUTING, 4)
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
    heartbeat = Heartbeat(count=9, pid=1, step=4, doing=COMPUTING, is_on_gpu=is_on_gpu)
    subject._watches = [RankWatch(0, heartbeat=heartbeat, silent_s=10.0, idle_s=0.0)]
    assert subject.is_at_work() is is_at_work
    subject._watches = [RankWatch(0, heartbeat=heartbeat, silent_s=10.0, idle_s=10.0)]
    assert not subject.is_at_work()
    subject._watches = [RankWatch(0, heartbeat=heartbeat)]
    assert subject.is_at_work(), "it beats"


@pytest.mark.parametrize("goes_on", [False, True])
def test_rank_that_has_gone_on_while_its_stack_was_read_does_not_hang(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    board = HeartbeatMemory(1)
    place = HeartbeatSlot(board.address, 0)
    place.write(COMPUTING, 4)
    subject = hang_watch.HangWatch(run, Config(), Ranks(run, board))
    subject._watches = [RankWatch(0, heartbeat=board.read(0), silent_s=100.0, idle_s=100.0)]

    def slow_read(_pid: int, _log: Path) -> Stacks:
        if goes_on:
            place.write(COMPUTING, 5)
        return standing(IN_LINEAR, IN_LOOP)

    monkeypatch.setattr(stacks, "read", slow_read)
    monkeypatch.setattr(hang_watch, "ANSWER_WITHIN_S", 0.0)
    found = subject._examine(Suspicion(ranks=(0,), is_certain=True))
    assert (found is None) is goes_on


ALL_REDUCE = PendingCollective(number=418, name="all-reduce", dtype="float32", num_bytes=1_200_000)
BROADCAST = PendingCollective(number=418, name="broadcast", dtype="float32", num_bytes=40)
BEFORE = PendingCollective(number=417, name="all-reduce", dtype="float32", num_bytes=40)
DEADLOCK = Suspicion(ranks=(), is_certain=False, may_be_deadlock=True)


def test_rank_that_waits_in_another_group_is_the_one_the_many_wait_for() -> None:
    there = {rank: standing(IN_SYNCHRONIZE, IN_LOOP) for rank in range(3)}
    elsewhere = Group(name="1", ranks=(1, 2), newest=BROADCAST, unfinished=BROADCAST)
    views = {
        0: view(ALL_REDUCE, ALL_REDUCE),
        1: [*view(ALL_REDUCE, ALL_REDUCE), Group(name="1", ranks=(1, 2))],
        2: [*view(BEFORE), elsewhere],
    }
    assert hang_watch.blocking_ranks(DEADLOCK, watches(num_ranks=3), there, views) == (2,)
    assert "rank 2 never entered all-reduce 418 (float32, 1.2 MB), in which ranks 0 and 1 wait" in [
        str(gap) for gap in gaps(views)
    ]


def test_a_kernel_that_never_ends_is_told_by_what_its_gpu_has_not_computed() -> None:
    """All hosts have the same stack and are in the same collective; only the progress of the GPUs differs."""
    there = {rank: standing(IN_SYNCHRONIZE, IN_LOOP) for rank in range(2)}
    same = {rank: view(ALL_REDUCE, ALL_REDUCE, 2) for rank in range(2)}
    seen, everybody = watches(), Suspicion(ranks=(0, 1), is_certain=True)
    for watched in seen:
        assert watched.heartbeat is not None
        watched.heartbeat = replace(watched.heartbeat, is_on_gpu=True)
    culprits = hang_watch.blocking_ranks(everybody, seen, there, same, (1,))
    assert culprits == (1,)
    cause = hang_watch.describe(culprits, seen, there, gaps(same), (1,))
    assert cause.rank == 1
    assert "the GPU of rank 1 never finished a backward pass, and the others wait" in cause.message
    assert "kernel" in cause.hint
    elsewhere = gaps({0: view(ALL_REDUCE, ALL_REDUCE, 2), 1: view(BROADCAST, BROADCAST, 2)})
    mismatch = hang_watch.describe((1,), seen, there, elsewhere, (1,))
    assert "kernel" not in mismatch.hint and "same collectives" in mismatch.hint, "that says more"
    nobody_knows = hang_watch.describe(everybody.ranks, seen, there, gaps(same))
    assert "no rank makes progress" in nobody_knows.message and "something else" not in nobody_knows.message


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
    assert found.location is not None and found.location.function == "stands_here", found.text()
    assert len(found.threads) == 2
    assert by in found.source
