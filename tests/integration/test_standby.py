"""Standby ranks train a run exactly like newly started ranks, and leave nothing behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import REPOSITORY, Launcher, all_events, create_run, ranks_below, wait_until
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local.warm_pool import Order
from trainers.machine import processes

NUM_RANKS = 2
END_S = 180.0
Begin = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / ".standby" / "one"


@pytest.fixture
def begin(folder: Path) -> Iterator[Begin]:
    """Return a function that starts standby ranks. Kills them afterwards."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin_one() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "trainers.engines.local.warm_supervisor",
            str(folder),
            "--nproc-per-node",
            str(NUM_RANKS),
        ]
        begun.append(subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, start_new_session=True))
        return begun[-1]

    yield begin_one
    for process in begun:
        for left in [*family(process)[1:], process]:
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has already ended
                left.kill()
        process.wait()


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return a process and its descendants."""
    try:
        found = psutil.Process(process.pid)
        return [found, *found.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def rank_of(process: subprocess.Popen[bytes], rank: int) -> psutil.Process:
    """Wait for a standby rank and return it."""

    def look() -> psutil.Process | None:
        _, *below = family(process)
        ranks = ranks_below(below[0]) if below else []
        return ranks[rank] if rank < len(ranks) else None

    found: psutil.Process = wait_until(f"rank {rank}", look, END_S)
    return found


def title_of(process: psutil.Process) -> str | None:
    return processes.title_of(process.cmdline())


def give(process: subprocess.Popen[bytes], run: RunDirectory) -> None:
    assert process.stdin is not None
    process.stdin.write(Order(run_dir=str(run.path)).to_line())
    process.stdin.close()


def losses(run: RunDirectory) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in all_events(run) if event["kind"] == "step"}


def test_a_run_is_the_same_with_ranks_that_stood_by(launcher: Launcher, begin: Begin, folder: Path) -> None:
    cold = launcher.start(max_steps=30)
    assert cold.wait_for_end().state == "finished", cold.story()
    warm = create_run(launcher.runs_dir, max_steps=30)
    process = begin()
    rank_of(process, 1)
    give(process, warm)
    assert process.wait(END_S) == 0
    status = liveness.read_status(warm)
    assert (status.state, status.pid, status.exit_code) == ("finished", process.pid, 0)
    assert losses(warm) == losses(cold.run), "the same bits"
    (starting, *_) = [event for event in all_events(warm) if event["kind"] == "state"]
    assert starting["reason"] == "2 CPU ranks from the warm pool, 1 thread each, building mlp."
    logs = sorted(path.name for path in warm.logs.iterdir())
    assert logs == ["rank_0.log", "rank_1.log", "supervisor.log", "torchrun", "torchrun.log"]
    assert not folder.exists()


def test_what_goes_wrong_is_told_as_ever(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, nproc_per_node=NUM_RANKS, num_epochs=100_000)
    process = begin()
    rank = rank_of(process, 1)
    wait_until("its title", lambda: title_of(rank) == "ddp: waiting for a run, rank 1", END_S)
    give(process, run)
    wait_until("a step", lambda: losses(run), END_S)
    assert title_of(rank) == f"ddp: {run.run_id} rank 1"
    rank.kill()
    assert process.wait(END_S) == 1
    (error,) = [event for event in all_events(run) if event["kind"] == "error"]
    assert error["rank"] == 1 and "Rank 1 was killed" in error["message"]
    assert liveness.read_status(run).state == "failed"


def test_a_command_reaches_ranks_that_stood_by(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, num_epochs=100_000)
    process = begin()
    give(process, run)
    wait_until("its owner", lambda: liveness.read_status(run).pid == process.pid, END_S)
    run.append_command("stop")  # while they still start
    process.wait(END_S)
    assert liveness.read_status(run).state == "stopped"
    assert [event["accepted"] for event in all_events(run) if event["kind"] == "command"] == [True]


@pytest.mark.parametrize("is_killed", [False, True])
def test_nobody_stands_by_for_a_page_that_is_gone(begin: Begin, folder: Path, is_killed: bool) -> None:
    process = begin()
    rank_of(process, 1)
    before = family(process)
    assert len(before) == 2 + NUM_RANKS
    if is_killed:
        process.kill()
    else:
        assert process.stdin is not None
        process.stdin.close()  # the kernel does the same for a killed page
        assert process.wait(END_S) == 0
        assert not folder.exists()
    wait_until("nobody being left", lambda: not any(each.is_running() for each in before[1:]), END_S)


def test_where_ranks_have_gone_meanwhile_others_are_started(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, max_steps=10)
    process = begin()
    rank = rank_of(process, 1)
    process.send_signal(subprocess.signal.SIGSTOP)
    rank.kill()
    wait_until("torchrun having ended", lambda: is_over(psutil.Process(process.pid).children()[0]), END_S)
    give(process, run)
    process.send_signal(subprocess.signal.SIGCONT)
    assert process.wait(END_S) == 0
    assert liveness.read_status(run).state == "finished"
    starting = next(event for event in all_events(run) if event["kind"] == "state")
    assert starting["reason"] == "2 CPU ranks, 1 thread each, building mlp."


@pytest.mark.parametrize("when", ["before the order", "after the order"])
def test_a_rank_that_falls_around_the_start_is_replaced(
    launcher: Launcher, begin: Begin, when: str, folder: Path
) -> None:
    """torchrun has not detected the failure when the order arrives."""
    run = create_run(launcher.runs_dir, max_steps=10)
    process = begin()
    rank = rank_of(process, 1)
    torchrun = psutil.Process(process.pid).children()[0]
    wait_until("rank 1 standing by", lambda: is_waiting(process, rank), END_S)
    (torchrun if when == "before the order" else rank).suspend()
    if when == "before the order":
        rank.kill()
        wait_until("its end", lambda: not processes.is_alive(rank.pid), END_S)
    give(process, run)
    if when == "after the order":
        wait_until("its owner", lambda: liveness.read_status(run).pid == process.pid, END_S)
        rank.kill()
    assert process.wait(END_S) == 0
    assert liveness.read_status(run).state == "finished"
    starting = next(event for event in all_events(run) if event["kind"] == "state")
    assert starting["reason"] == "2 CPU ranks, 1 thread each, building mlp."
    assert not [event for event in all_events(run) if event["kind"] in ("error", "warning")]
    assert not folder.exists()
    wait_until("the end of the first torchrun", lambda: not torchrun.is_running(), END_S)


def test_a_run_that_cannot_begin_is_not_begun_for_ever(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, data_path="/nowhere/at/all", dataset="own")
    process = begin()
    rank_of(process, 1)
    give(process, run)
    assert process.wait(END_S) == 1
    assert liveness.read_status(run).state == "failed"
    assert [event["kind"] for event in all_events(run)].count("error") == 1


def is_waiting(process: subprocess.Popen[bytes], rank: psutil.Process) -> bool:
    """Return True if a rank holds its end of the pipe that delivers the order."""
    return bool(pipes_of(process.pid) & pipes_of(rank.pid))


def pipes_of(pid: int) -> set[str]:
    return {
        name for path in Path(f"/proc/{pid}/fd").iterdir() if (name := target_of(path)).startswith("pipe:")
    }


def target_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""  # closed in the meantime


def is_over(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_ZOMBIE
