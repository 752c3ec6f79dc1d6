"""Tests of hang detection, with simulated heartbeats, clocks and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.harness import wait_until
from trainers.contract import heartbeats
from trainers.contract.heartbeats import BUSY_FACTOR, Beat, Place
from trainers.engines.heartbeats import HeartbeatBoard
from trainers.engines.local import hang_watch
from trainers.engines.local.hang_watch import RankWatch, Suspicion, find_suspicion
from trainers.machine import processes
from trainers.machine.processes import Effort

LIMIT_S = 20.0
IDLE = 0.01  # CPU use of a waiting rank, in cores


class Job:
    """Two ranks as the supervisor sees them; time advances in steps of one second."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.watches = [RankWatch(rank) for rank in range(num_ranks)]
        self.counts = [1] * num_ranks
        self.cpu_s = [0.0] * num_ranks
        self.in_line_s = [0.0] * num_ranks
        self.doing = [heartbeats.COMPUTING] * num_ranks
        self.is_on_gpu = False

    def pass_second(
        self,
        *,
        beating: tuple[int, ...] = (),
        working: tuple[int, ...] = (),
        stopped: tuple[int, ...] = (),
        at_disk: tuple[int, ...] = (),
        reading: tuple[int, ...] = (),
        in_line: tuple[int, ...] = (),
        passed_s: float = 1.0,
    ) -> Suspicion | None:
        for rank, watch in enumerate(self.watches):
            self.counts[rank] += rank in beating
            self.cpu_s[rank] += 0.0 if rank in stopped else 0.5 if rank in working else IDLE
            self.in_line_s[rank] += 0.95 if rank in in_line else 0.0
            beat = Beat(count=self.counts[rank], pid=1, step=4, doing=self.doing[rank])
            beat = replace(beat, is_on_gpu=self.is_on_gpu)
            used = Effort(
                cpu_s=self.cpu_s[rank],
                wanted_s=self.cpu_s[rank] + self.in_line_s[rank],
                io_bytes=int(self.cpu_s[rank] * 1e9) if rank in reading else 0,
                is_stopped=rank in stopped,
                waits_for_disk=rank in at_disk,
            )
            watch.update(beat, used, passed_s)
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


def test_idleness_of_all_ranks_on_gpus_is_not_certain_because_hosts_sleep_while_their_gpus_work() -> None:
    job = Job()
    job.is_on_gpu = True
    job.pass_second(beating=(0, 1))
    second, found = job.pass_seconds(60)
    assert found == Suspicion(ranks=(0, 1), is_certain=False, may_be_deadlock=True)
    assert LIMIT_S <= second <= LIMIT_S + 2
    job.doing = [heartbeats.BUILDING, heartbeats.BUILDING]
    job.pass_second(beating=(0, 1))
    assert job.pass_seconds(60)[1] == Suspicion(ranks=(0, 1), is_certain=True), "no step is under way"


def test_rank_that_waits_for_one_that_builds_is_none() -> None:
    job = Job()
    job.doing = [heartbeats.BUILDING, heartbeats.BUILDING]
    assert job.pass_seconds(500, working=(0,)) == (500, None)


def test_ranks_that_have_not_begun_are_no_hang_until_one_has() -> None:
    watches = [RankWatch(0), RankWatch(1)]
    for _ in range(100):
        for watch in watches:
            watch.update(None, None, 1.0)
        assert find_suspicion(watches, LIMIT_S) is None
    watches[0].update(Beat(count=1, pid=1, step=0, doing=0), None, 1.0)
    assert find_suspicion(watches, LIMIT_S) is None, "rank 0 has just begun"


def test_ranks_at_work_are_those_that_beat_or_work_and_none_where_one_is_stopped() -> None:
    job = Job()
    job.pass_seconds(10, working=(0,))
    assert [watch.rank for watch in hang_watch.busy_ranks(job.watches)] == [0]
    job.pass_second(beating=(1,), working=(0,))
    assert [watch.rank for watch in hang_watch.busy_ranks(job.watches)] == [0, 1]
    job.pass_second(stopped=(1,), working=(0,))
    assert hang_watch.busy_ranks(job.watches) == []
    asleep = Job()
    asleep.pass_seconds(6)
    assert hang_watch.busy_ranks(asleep.watches) == []


def test_question_is_answered_by_those_who_listen_and_what_is_too_long_is_not_said() -> None:
    board = HeartbeatBoard(3)
    places = [Place(board.address, rank) for rank in range(3)]
    assert not any(place.is_asked for place in places) and board.answer(1) is None
    board.ask()
    assert [board.answer(rank) for rank in range(3)] == [None, None, None]
    assert all(place.is_asked for place in places)
    places[1].answer(b"[1, 2]")
    places[2].answer(b"x" * (heartbeats.MAX_ANSWER_BYTES + 1))
    assert [board.answer(rank) for rank in range(3)] == [None, b"[1, 2]", b""]
    assert not places[1].is_asked
    board.ask()
    assert board.answer(1) is None, "that was the answer to another question"
    assert [board.read(rank) for rank in range(3)] == [None, None, None], "an answer is no beat"
    places[0].note_gpu()
    for place in places:
        place.beat(heartbeats.COMPUTING)
    assert [(beat := board.read(rank)) and beat.is_on_gpu for rank in range(3)] == [True, False, False]
    lone = Place(None, 5)
    assert not lone.is_asked
    lone.answer(b"nobody hears")


def test_effort_tells_work_from_waiting_and_knows_a_stopped_process() -> None:
    # The program is busy until it is killed, because the duration of a fixed amount of work depends on the
    # machine.
    program = "print('waiting', flush=True)\ninput()\nwhile True:\n    pass"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            waiting = processes.sample_effort(process.pid)
            assert waiting is not None and not waiting.is_stopped
            process.stdin.write("work\n")
            process.stdin.flush()
            worked_s = waiting.cpu_s + 0.2
            wait_until(
                "work", lambda: (found := processes.sample_effort(process.pid)) and found.cpu_s > worked_s, 60
            )
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(
                "a stop", lambda: (found := processes.sample_effort(process.pid)) and found.is_stopped, 60
            )
        finally:
            process.kill()
    assert processes.sample_effort(process.pid) is None
