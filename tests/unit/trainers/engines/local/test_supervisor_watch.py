"""Tests of how the page handles a supervisor that does not react to Stop, with simulated clocks."""

from __future__ import annotations

from trainers.engines.local.stopping import DEAF_AFTER_S, STAYS_STOPPED_S, SupervisorWatchdog

MOST_S = 15.0


def test_one_that_looks_around_is_left_alone() -> None:
    watchdog = SupervisorWatchdog(0.0)
    assert {watchdog.judge((now,), float(now), is_stopped=False) for now in range(60)} == {"wait"}


def test_stopped_one_is_let_go_on_at_once_and_killed_when_it_stays_stopped() -> None:
    watchdog = SupervisorWatchdog(0.0)
    assert watchdog.judge((1.0,), 0.1, is_stopped=True) == "continue"
    assert watchdog.judge((1.0,), 0.3, is_stopped=True) == "wait"
    assert watchdog.judge((1.0,), 0.2 + STAYS_STOPPED_S, is_stopped=True) == "kill"


def test_deaf_one_is_killed_in_time() -> None:
    watchdog = SupervisorWatchdog(0.0)
    judged = (now for now in range(60) if watchdog.judge((1.0,), float(now), is_stopped=False) == "kill")
    assert DEAF_AFTER_S <= next(judged) <= MOST_S - 3
