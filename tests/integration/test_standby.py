"""A run of the warm pool trains exactly like one that starts cold, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import REPOSITORY, Launcher, all_events, create_run, wait_until
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local.warm_pool import StartRequest
from trainers.machine import processes

NUM_RANKS = 2
END_S = 180.0
# A template that has imported torch waits: it uses no processor time for this long.
QUIET_S = 1.0
Begin = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a function that starts a supervisor without a run, with its template. Kills them afterwards."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin_one() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "trainers.engines.local.supervisor",
            "--wait",
            str(tmp_path / "runs"),
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


def template_of(process: subprocess.Popen[bytes] | psutil.Process) -> psutil.Process:
    """Wait until the template of a waiting supervisor has imported torch; return it."""

    def look() -> psutil.Process | None:
        found = psutil.Process(process.pid).children()
        return found[0] if found and has_torch(found[0]) and is_quiet(found[0]) else None

    found: psutil.Process = wait_until("the template", look, END_S)
    return found


def has_torch(process: psutil.Process) -> bool:
    return "libtorch_python" in Path(f"/proc/{process.pid}/maps").read_text()


def is_quiet(process: psutil.Process) -> bool:
    """Return True if a process uses no processor time and its main thread sleeps."""
    return process.cpu_percent(QUIET_S) == 0.0 and process.status() == psutil.STATUS_SLEEPING


def give(process: subprocess.Popen[bytes], run: RunDirectory) -> None:
    assert process.stdin is not None
    process.stdin.write(StartRequest(run_dir=str(run.path)).to_line())
    process.stdin.close()


def losses(run: RunDirectory) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in all_events(run) if event["kind"] == "step"}


def test_a_run_of_the_warm_pool_is_the_same(
    launcher: Launcher, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the load at each start decides the threads of a single rank, and so the order of its sums.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cold = launcher.start(max_steps=30, nproc_per_node=NUM_RANKS).finish()
    warm = create_run(launcher.runs_dir, max_steps=30, nproc_per_node=NUM_RANKS)
    process = begin()
    template = template_of(process)
    give(process, warm)
    assert process.wait(END_S) == 0
    status = liveness.read_status(warm)
    assert (status.state, status.pid, status.exit_code) == ("finished", process.pid, 0)
    assert losses(warm) == losses(cold.run), "the same bits"
    (starting, *_) = [event for event in all_events(warm) if event["kind"] == "state"]
    assert starting["reason"].startswith(f"{NUM_RANKS} CPU ranks from the warm pool, ")
    logs = sorted(path.name for path in warm.logs.iterdir())
    assert logs == [
        *(f"rank_{rank}.log" for rank in range(NUM_RANKS)),
        *("supervisor.log", "torchrun", "torchrun.log"),
    ]
    assert not template.is_running()


def test_a_killed_rank_of_the_warm_pool_is_named(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, nproc_per_node=NUM_RANKS, num_epochs=100_000)
    process = begin()
    template = template_of(process)
    give(process, run)
    wait_until("a step", lambda: losses(run), END_S)
    titles = {processes.title_of(rank.cmdline()): rank for rank in template.children()}
    assert set(titles) == {f"ddp: {run.run_id} rank {rank}" for rank in range(NUM_RANKS)}
    titles[f"ddp: {run.run_id} rank 1"].kill()
    assert process.wait(END_S) == 1
    (error,) = [event for event in all_events(run) if event["kind"] == "error"]
    assert error["rank"] == 1 and "Rank 1 was killed" in error["message"]
    assert liveness.read_status(run).state == "failed"


def test_a_command_reaches_a_run_whose_template_still_imports(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, num_epochs=100_000)
    process = begin()
    give(process, run)
    wait_until("its owner", lambda: liveness.read_status(run).pid == process.pid, END_S)
    run.append_command("stop")
    process.wait(END_S)
    assert liveness.read_status(run).state == "stopped"
    assert [event["accepted"] for event in all_events(run) if event["kind"] == "command"] == [True]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_template_ends_with_its_page(begin: Begin, is_killed: bool) -> None:
    process = begin()
    template = template_of(process)
    assert family(process)[1:] == [template]
    if is_killed:
        process.kill()
    else:
        assert process.stdin is not None
        process.stdin.close()  # the kernel does the same for a killed page
        assert process.wait(END_S) == 0
    wait_until("the end of the template", lambda: not template.is_running(), END_S)


def test_a_run_starts_cold_if_the_template_has_been_killed(launcher: Launcher, begin: Begin) -> None:
    run = create_run(launcher.runs_dir, max_steps=10)
    process = begin()
    template = template_of(process)
    process.send_signal(subprocess.signal.SIGSTOP)  # it must not notice before the order arrives
    template.kill()
    wait_until("its end", lambda: template.status() == psutil.STATUS_ZOMBIE, END_S)
    give(process, run)
    process.send_signal(subprocess.signal.SIGCONT)
    assert process.wait(END_S) == 0
    assert liveness.read_status(run).state == "finished"
    starting = next(event for event in all_events(run) if event["kind"] == "state")
    assert starting["reason"] == "2 CPU ranks, 1 thread each, building mlp."
