"""Tests of killing a process tree: how long processes that survive SIGKILL are waited for."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from trainers.machine import processes
from trainers.machine.processes import GPU_KILL_WAIT_S, KILL_WAIT_S, ProcessTree

PID = 4321


class FakeClock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeDyingProcess:
    """A process that takes some time to exit after its first SIGKILL."""

    pid = PID

    def __init__(self, clock: FakeClock, dies_after_s: float) -> None:
        self._clock = clock
        self._dies_after_s = dies_after_s
        self._killed_at: float | None = None

    def kill(self) -> None:
        self._killed_at = self._killed_at or self._clock.now_s

    def is_running(self) -> bool:
        return self._killed_at is None or self._clock.now_s < self._killed_at + self._dies_after_s

    def status(self) -> str:
        return psutil.STATUS_DISK_SLEEP


class FakeTree(ProcessTree):
    """A process tree that consists of this one process."""

    def __init__(self, process: FakeDyingProcess) -> None:
        super().__init__(PID)
        self._known = {process}  # type: ignore[arg-type]

    def update(self, *, now: bool = False) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(processes, "time", clock)
    return clock


def held_gpu(clock: FakeClock, *, before_s: float) -> bool:
    """Return True while the GPU is open; an exiting process closes its files first."""
    return clock.now_s < 1000.0 + before_s


def test_process_that_held_a_gpu_is_waited_for_until_the_driver_has_let_go(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "holds_gpu", lambda pid: pid == PID and held_gpu(clock, before_s=0.5))
    tree = FakeTree(FakeDyingProcess(clock, dies_after_s=12.0))
    tree.kill()
    assert tree.survivors() == []
    assert clock.now_s == pytest.approx(1012.0, abs=0.1), "and not longer"


def test_process_that_never_goes_is_given_up_once(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "holds_gpu", lambda _pid: held_gpu(clock, before_s=0.5))
    tree = FakeTree(FakeDyingProcess(clock, dies_after_s=10**6))
    tree.kill()
    assert clock.now_s == pytest.approx(1000.0 + GPU_KILL_WAIT_S, abs=0.1)
    tree.kill()
    assert clock.now_s == pytest.approx(1000.0 + GPU_KILL_WAIT_S + KILL_WAIT_S, abs=0.1)
    assert len(tree.survivors()) == 1


def test_process_without_a_gpu_is_given_up_as_soon_as_before(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "holds_gpu", lambda _pid: False)
    tree = FakeTree(FakeDyingProcess(clock, dies_after_s=12.0))
    tree.kill()
    assert len(tree.survivors()) == 1
    assert clock.now_s == pytest.approx(1000.0 + KILL_WAIT_S, abs=0.1)


def test_who_has_the_driver_open_holds_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia0"
    driver.touch()
    monkeypatch.setattr(processes, "_GPU_FILES", (str(tmp_path / "nvidia"),))
    assert not processes.holds_gpu(os.getpid())
    with driver.open():
        assert processes.holds_gpu(os.getpid())
    assert not processes.holds_gpu(os.getpid())
