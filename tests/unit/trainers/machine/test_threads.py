"""Tests of threads per rank, and of the load of other processes that leaves fewer."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.harness import wait_until
from trainers.machine import threads
from trainers.machine.threads import OtherLoadReader, own_cpu_s


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (threads.GIVEN, threads.FREE_CORES, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("free", "num_ranks", "most", "recorded", "expected"),
    [
        (None, 1, None, None, 8),
        (None, 3, None, None, 2),
        ("7.8", 1, None, None, 8),  # the page itself uses a little
        ("6.6", 2, None, None, 4),  # little other load: the same number at each start
        ("1.2", 1, None, None, 1),
        ("8.0", 2, 1, None, 1),  # with logins, each rank counts as one core
        ("1.0", 1, None, 4, 4),  # resumed: same order of sums
        (None, 1, None, 64, 8),  # the checkpoint is from a larger machine
        (None, 1, 1, 8, 1),  # more than the queue has granted
        ("64.0", 1, threads.MOST_BESIDE_GPU, None, 8),  # a rank on a GPU prepares batches
    ],
)
def test_free_cores_are_divided_among_the_ranks(
    free: str | None,
    num_ranks: int,
    most: int | None,
    recorded: int | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if free is not None:
        monkeypatch.setenv(threads.FREE_CORES, free)
    assert threads.choose(num_ranks, 8, max_threads=most, recorded=recorded) == expected


def test_what_torchrun_sets_for_several_ranks_is_nobodys_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv(threads.GIVEN, "1")
    monkeypatch.setattr(os, "getppid", lambda: 0)  # no environment can be read
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert threads.choose(2, 8) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert threads.choose(1, 8) == 1
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setenv(threads.FREE_CORES, "1.0")
    monkeypatch.setenv(threads.GIVEN, "3")
    assert threads.choose(2, 8, max_threads=1, recorded=2) == 3, "a wish"


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
