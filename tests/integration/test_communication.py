"""The communication check with real gloo ranks that measure, die, hang and are stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.machine import communication
from ddp_gui.machine.communication import CommunicationCheck, CommunicationChecks
from tests.harness import REPOSITORY, let_go_on_until, wait_until

HERE = Machine(num_gpus=0, num_cores=2)
DONE_S = 180.0
# Acts as a page in a separate process that can be killed.
PAGE = """
import time
from ddp_gui.machine.communication import CommunicationChecks
from ddp_gui.devices.capacity import Machine
CommunicationChecks().start(2, Machine(num_gpus=0, num_cores=2))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure between CPU ranks even on a machine with GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def checks() -> Iterator[CommunicationChecks]:
    started = CommunicationChecks(timeout_s=DONE_S)
    yield started
    started.close()
    assert processes_below(os.getpid()) == []


def processes_below(pid: int) -> list[psutil.Process]:
    """Return the processes of checks below a process."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "trainers.check_communication" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def ranks_below(pid: int) -> list[psutil.Process]:
    """Return the ranks of checks below a process, by rank."""
    ranks = {}
    for process in processes_below(pid):
        try:
            if "RANK" in (environment := process.environ()):
                ranks[int(environment["RANK"])] = process
        except psutil.NoSuchProcess:
            continue
    return [ranks[rank] for rank in sorted(ranks)]


def hold_while_it_measures(check: CommunicationCheck) -> list[psutil.Process]:
    """Wait until a check of two ranks measures, suspend rank 1, which blocks both, and return the ranks."""
    wait_until("both ranks", lambda: len(ranks_below(os.getpid())) == 2 or check.state != "running", DONE_S)
    assert check.state == "running", check.error
    ranks = ranks_below(os.getpid())
    let_go_on_until(ranks[1], "a measured size", lambda: check.lines, DONE_S)
    return ranks


def test_ranks_of_a_check_hold_no_secret_of_the_page(
    checks: CommunicationChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DDP_NOTIFY_URLS", "HF_TOKEN"):
        monkeypatch.setenv(name, "json://hunter2-7f3a9c")
    ranks = hold_while_it_measures(checks.start(2, HERE))
    assert len(ranks) == 2
    assert not any("hunter2" in value for rank in ranks for value in rank.environ().values())


def test_a_check_that_hangs_is_ended_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit expires once both ranks exist and one is suspended, however long the start took."""
    monkeypatch.setattr(communication, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    now_s = [0.0]
    checks = CommunicationChecks(timeout_s=12.0)
    check = checks.start(2, HERE)
    wait_until("both ranks", lambda: len(ranks_below(os.getpid())) == 2, DONE_S)
    for rank in ranks_below(os.getpid())[1:]:
        rank.suspend()
    now_s[0] = 13.0
    assert check.has_ended.wait(DONE_S)
    assert check.state == "failed"
    assert check.error is not None and "was not finished after 12 s" in check.error
    assert processes_below(os.getpid()) == []


def test_nothing_outlives_a_page_that_is_killed(tmp_path: Path) -> None:
    # A killed process cannot remove its temporary folder.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    page = subprocess.Popen([sys.executable, "-c", PAGE], cwd=REPOSITORY, env=environment)
    try:
        wait_until("both ranks", lambda: len(ranks_below(page.pid)) == 2, DONE_S)
        # A forked child has its parent's command line until it calls exec.
        wait_until("torchrun and its ranks", lambda: len(processes_below(page.pid)) == 3, DONE_S)
        of_check = processes_below(page.pid)
    finally:
        page.kill()
        page.wait(timeout=DONE_S)
    gone, alive = psutil.wait_procs(of_check, timeout=DONE_S)
    assert alive == []
    assert len(gone) == 3
