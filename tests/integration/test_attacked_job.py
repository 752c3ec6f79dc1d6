"""Attacks on a job by another user of this machine: no data leaks, and no code runs as the job's user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.machine.communication import CommunicationChecks
from tests.harness import (
    REPOSITORY,
    LiveRun,
    all_events,
    create_run,
    processes_of,
    torchrun_by_hand,
    wait_until,
)
from tests.port_attacker import LOOPBACK, attack, family
from trainers.engines.local.torchrun_process import Template

END_S = 180.0
NUM_RANKS = 2

Victim = Callable[[Path], AbstractContextManager[list[int]]]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="becoming another user needs root: run the tests as root to attack a job"
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user can reach and write to."""
    with tempfile.TemporaryDirectory(prefix="open-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes. Any of them may already have ended because another one is missing."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


@contextlib.contextmanager
def by_hand(folder: Path) -> Iterator[list[int]]:
    """Yield the PIDs of a run started with the command that the page shows."""
    run = create_run(folder / "runs", num_epochs=100_000)
    process = subprocess.Popen(torchrun_by_hand(run), cwd=REPOSITORY)

    def newest_step() -> int:
        assert process.poll() is None, "it goes on"
        return max((event["step"] for event in all_events(run) if event["kind"] == "step"), default=0)

    try:
        wait_until("a step", newest_step, END_S)
        yield family(process.pid)
        attacked_at = newest_step()
        wait_until("more steps", lambda: newest_step() > attacked_at + 100, END_S)
        run.append_command("stop", save=False)
        assert process.wait(END_S) == 0
    finally:
        process.kill()
        kill_all(left.pid for left in processes_of(run))
        process.wait()


@contextlib.contextmanager
def waiting(_folder: Path) -> Iterator[list[int]]:
    """Yield the PID of a template without a run."""
    held = Template()
    try:
        wait_until(
            "torch in the template",
            lambda: "libtorch_python" in Path(f"/proc/{held.process.pid}/maps").read_text(),
            END_S,
        )
        yield family(held.process.pid)
        assert held.process.poll() is None, "it goes on waiting"
    finally:
        held.process.kill()
        held.process.wait()


@contextlib.contextmanager
def checking(_folder: Path) -> Iterator[list[int]]:
    """Yield the PIDs of a communication check during the size that takes longest."""
    checks = CommunicationChecks(timeout_s=END_S)
    own = set(family(os.getpid()))
    check = checks.start(NUM_RANKS, Machine(num_gpus=0, num_cores=NUM_RANKS))
    try:
        wait_until("a first size", lambda: check.lines or check.error, END_S)
        yield [pid for pid in family(os.getpid()) if pid not in own]
        check.has_ended.wait(END_S)
        assert (check.state, check.error) == ("done", None)
    finally:
        checks.close()


# A run of the page: the fault "another user attacks a run".
@pytest.mark.parametrize("victim", [by_hand, waiting, checking])
def test_another_user_gets_nothing_of_a_job(victim: Victim, tmp_path: Path, open_folder: Path) -> None:
    with victim(tmp_path) as pids:
        assert len(pids) >= (1 if victim is waiting else NUM_RANKS + 1), "torchrun and its ranks"
        report = attack(pids, open_folder)
        assert set(report["ports"].values()) <= LOOPBACK, "nothing listens to the network"
        assert report["stores"] == {}, "no port answers as a store"
        assert report["opened"] == [], "descriptors, environments and memories are theirs alone"
    assert list(open_folder.iterdir()) == [], "what was planted has not been run"


def test_the_attack_works_where_the_door_is_open(open_folder: Path) -> None:
    """Control experiment: torchrun, started as documented, executes what another user planted."""
    arguments = ["--standalone", "--nproc-per-node", "1", "--no-python", "sleep", "100"]
    process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *arguments], cwd=REPOSITORY)
    try:
        wait_until("its rank", lambda: len(family(process.pid)) > 1, END_S)
        # The attacker gives up on a store that is slow to answer, so repeat the attack.
        report = wait_until(
            "a store answering",
            lambda: (found := attack(family(process.pid), open_folder))["stores"] and found,
            END_S,
        )
        assert not set(report["ports"].values()) <= LOOPBACK
        wait_until("what was planted", lambda: list(open_folder.iterdir()), END_S)
        assert {path.stat().st_uid for path in open_folder.iterdir()} == {os.getuid()}
    finally:
        kill_all(reversed(family(process.pid)))
        process.wait()


def test_nothing_of_the_rendezvous_is_left_by_a_job_that_was_killed(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = create_run(tmp_path / "runs", num_epochs=100_000)
    live = LiveRun(run, None, REPOSITORY, {"TMPDIR": str(temporary)})
    try:
        live.wait_for_step(10)
    finally:
        live.kill()
    left = [path for folder in (temporary, run.path) for path in folder.rglob("*") if path.is_file()]
    assert left, "the run's own files"
    assert [
        path.name for path in left if path.name == "store" or b"torch.rendezvous" in path.read_bytes()
    ] == []
    assert list(temporary.iterdir()) == []
