"""Tests of when a run's guard uses force, without processes: stop requests, saves, busy and hung ranks."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.harness import all_events
from trainers.contract import config
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import HeartbeatBoard
from trainers.engines.local import stopping
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stacks import Ranks
from trainers.engines.local.stopping import STOP_GRACE_S, TERM_GRACE_S, RunGuard


class FakeTorchrun:
    """Counts SIGTERMs."""

    num_terminated = 0

    def terminate(self) -> None:
        self.num_terminated += 1


class FakeTree:
    """Counts how often the process tree is killed."""

    num_killed = 0

    def update(self, *, now: bool = False) -> None:
        assert now

    def kill(self) -> None:
        self.num_killed += 1


class FakeWatch:
    """Returns the cause that the test sets."""

    finds: Cause | None = None
    has_passed = False
    num_forgotten = 0
    num_followed = 0
    works = False

    def check(self) -> Cause | None:
        return self.finds

    def follow(self) -> float | None:
        self.num_followed += 1
        return 1.0

    def is_at_work(self) -> bool:
        return self.works

    def forget(self) -> None:
        self.num_forgotten += 1


class Guarded:
    """A guard with the state of its run and fake processes."""

    def __init__(self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, *states: State) -> None:
        self._monkeypatch = monkeypatch
        self.torchrun, self.tree, self.watch = FakeTorchrun(), FakeTree(), FakeWatch()
        self.state: State = "starting"
        self.pass_time(0.0)
        self.guard = RunGuard(run)
        self.say(*states)

    def pass_time(self, seconds: float) -> None:
        """Advance the guard's clock and freeze it."""
        pass_time(self._monkeypatch, seconds)

    def watch_ranks(self, on_hang: str = "end") -> None:
        """Attach the fake watch to the guard."""
        self._monkeypatch.setattr(stopping, "HangWatch", lambda *_: self.watch)
        self.guard.watch_ranks(config.parse({"on_hang": on_hang}), Ranks(self.guard._run, HeartbeatBoard(1)))

    def say(self, *states: State) -> None:
        """Let rank 0 report these states."""
        self.guard.note_events([{"kind": "state", "state": state} for state in states], self.state)
        self.state = [self.state, *states][-1]

    def enforce(self) -> None:
        self.guard.enforce(self.state, self.torchrun, self.tree)  # type: ignore[arg-type]


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the clock of all guards and freeze it."""
    now = stopping.time.monotonic() + seconds
    clock = SimpleNamespace(time=time.time, sleep=time.sleep, monotonic=lambda: now)
    monkeypatch.setattr(stopping, "time", clock)


def test_stop_that_is_not_heard_is_sigterm_then_sigkill(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Guarded(run, monkeypatch, "running")
    run.append_command("stop")
    subject.guard.read_requests()
    subject.enforce()
    assert subject.torchrun.num_terminated == 0, "it has its time"
    assert subject.guard.is_stop_requested and not subject.guard.is_forced
    subject.pass_time(STOP_GRACE_S + 1)
    subject.enforce()
    assert (subject.torchrun.num_terminated, subject.tree.num_killed) == (1, 0)
    assert subject.guard.is_forced
    subject.pass_time(TERM_GRACE_S + 1)
    subject.enforce()
    assert (subject.torchrun.num_terminated, subject.tree.num_killed) == (1, 1)


def test_stop_of_a_run_at_work_is_waited_for_and_said_so_once(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Guarded(run, monkeypatch, "running")
    subject.watch_ranks()
    subject.watch.works = True
    run.append_command("stop")
    subject.guard.read_requests()
    for _ in range(20):
        subject.enforce()
        subject.pass_time(2.0)
    assert subject.torchrun.num_terminated == 0 and subject.watch.num_followed == 20
    warnings = [event for event in all_events(run) if event["kind"] == "warning"]
    assert [event["code"] for event in warnings] == ["stop_waits"]
    subject.watch.works = False
    subject.pass_time(STOP_GRACE_S)
    subject.enforce()
    assert subject.torchrun.num_terminated == 1


def test_save_that_grows_is_waited_for(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Guarded(run, monkeypatch, "running")
    run.append_command("stop")
    subject.guard.read_requests()
    subject.say("stopping")
    partial = run.checkpoints / ".step_7.partial"
    partial.mkdir(parents=True)
    for num_bytes in (1, 2, 3):
        (partial / "model.safetensors").write_bytes(b"x" * num_bytes)
        subject.enforce()
        subject.pass_time(STOP_GRACE_S - 1)
        subject.enforce()
        assert subject.torchrun.num_terminated == 0, "there is more and more of it"
    subject.pass_time(STOP_GRACE_S + 1)
    subject.enforce()
    assert subject.torchrun.num_terminated == 1, "nothing more was written"


def test_stop_that_was_refused_is_not_enforced_later(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Guarded(run, monkeypatch, "running")
    run.append_command("stop")
    subject.guard.read_requests()
    subject.say("stopping", "running")
    subject.pass_time(1000.0)
    subject.enforce()
    assert subject.torchrun.num_terminated == 0


def test_sigterm_skips_the_polite_part(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Guarded(run, monkeypatch, "running")
    subject.guard.request_end()
    subject.enforce()
    assert subject.torchrun.num_terminated == 1


def test_hang_is_killed_and_kept_as_the_cause(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Guarded(run, monkeypatch, "running")
    subject.watch_ranks()
    subject.enforce()
    assert (subject.guard.fatal, subject.tree.num_killed) == (None, 0)
    subject.watch.finds = Cause(code="hang", message="Rank 1.", hint="Look.", rank=1)
    subject.enforce()
    assert (subject.guard.fatal, subject.tree.num_killed) == (subject.watch.finds, 1)


def test_hang_of_a_run_that_waits_is_said_and_so_is_its_end(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Guarded(run, monkeypatch, "running")
    subject.watch_ranks(on_hang="wait")
    subject.watch.finds = Cause(code="hang", message="Rank 1.", hint="Look.", rank=1)
    subject.enforce()
    subject.watch.finds = None
    subject.enforce()
    subject.watch.has_passed = True
    subject.enforce()
    said = [event["code"] for event in all_events(run) if event["kind"] == "warning"]
    assert said == ["hang", "hang_over"]
    assert (subject.tree.num_killed, subject.watch.num_forgotten) == (0, 1)
