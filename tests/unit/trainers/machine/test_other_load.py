"""Tests of CPU use by other processes, with simulated counters and with a busy process."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from tests.harness import wait_until
from trainers.machine import threads
from trainers.machine.threads import OtherLoad, OtherLoadReader, own_cpu_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Return the CPU times of three cores, which a test may change; this process may use the first two."""
    cores = [SimpleNamespace(user=10.0, system=5.0, idle=100.0, iowait=0.0, steal=0.0) for _ in range(3)]
    monkeypatch.setattr(threads.psutil, "cpu_times", lambda *, percpu: list(cores))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return cores


def test_the_clocks_of_cores_and_of_processes_may_differ_a_little(clocks: list[SimpleNamespace]) -> None:
    reader = OtherLoadReader()
    reader.read(0.0)
    clocks[0].user += 1.0
    assert reader.read(1.02) == OtherLoad(others_percent=0.0, idle_percent=0.0)
    assert reader.read(1.02) is None, "no time has passed"


def test_a_busy_process_is_seen_and_ones_own_work_is_not() -> None:
    reader = OtherLoadReader()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for hog in hogs:
            wait_until("its work", lambda hog=hog: psutil.Process(hog.pid).cpu_times().user > 0.1, 60.0)
        reader.read(own_cpu_s())
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass
        beside = reader.read(own_cpu_s())
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert beside is not None
    num_cores = len(threads.os.sched_getaffinity(0))
    assert beside.others_percent > 100 * 0.5 / max(2, num_cores)
