"""Tests of how the page handles a supervisor that does not react to Stop, with simulated clocks."""

from __future__ import annotations

from trainers.engines.local.stopping import DEAF_AFTER_S, STAYS_STOPPED_S, SupervisorState, SupervisorWatchdog

MOST_S = 15.0


def sight(life: float, *, is_stopped: bool = False) -> SupervisorState:
    return SupervisorState(is_stopped=is_stopped, signs_of_life=(life,))


def test_one_that_looks_around_is_left_alone() -> None:
    watchdog = SupervisorWatchdog(0.0)
    assert {watchdog.judge(sight(now), float(now)) for now in range(60)} == {"wait"}


def test_stopped_one_is_let_go_on_at_once_and_killed_when_it_stays_stopped() -> None:
    watchdog = SupervisorWatchdog(0.0)
    assert watchdog.judge(sight(1.0, is_stopped=True), 0.1) == "continue"
    assert watchdog.judge(sight(1.0, is_stopped=True), 0.3) == "wait"
    assert watchdog.judge(sight(1.0, is_stopped=True), 0.2 + STAYS_STOPPED_S) == "kill"


def test_deaf_one_is_killed_in_time() -> None:
    watchdog = SupervisorWatchdog(0.0)
    now = next(now for now in range(60) if watchdog.judge(sight(1.0), float(now)) == "kill")
    assert DEAF_AFTER_S <= now <= MOST_S - 3
