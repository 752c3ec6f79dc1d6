"""Tests of when a run is stopped by force, with simulated clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.contract.commands import Incoming
from trainers.contract.events import State
from trainers.engines.local.stopping import (
    EXIT_GRACE_S,
    FLUSH_S,
    MAX_COMMAND_AGE_S,
    MAX_SAVE_START_S,
    SAVE_GRACE_S,
    STOP_GRACE_S,
    TERM_GRACE_S,
    CheckpointWrite,
    Escalation,
    command_age_s,
)

CLICK_S = 1000.0
MOST_S = 15.0


def first_force(subject: Escalation, state: State, *, until_s: float = 600.0) -> float | None:
    """Return the seconds from the click to the first use of force; None if no force is used until then."""
    for tenth in range(int(until_s * 10)):
        if subject.decide(state, CLICK_S + tenth / 10) != "wait":
            return tenth / 10
    return None


def stop_requested(*, save: bool = True) -> Escalation:
    """Return the rule at the time of the click."""
    subject = Escalation(0.0)
    subject.request_stop(CLICK_S, save=save)
    return subject


@pytest.mark.parametrize("save", [True, False])
@pytest.mark.parametrize("state", ["running", "paused", "stopping"])
def test_stop_is_forced_and_over_within_fifteen_seconds(state: State, save: bool) -> None:
    subject = stop_requested(save=save)
    at = first_force(subject, state)
    assert at is not None and STOP_GRACE_S <= at <= MOST_S - TERM_GRACE_S - 1
    assert subject.decide(state, CLICK_S + at + TERM_GRACE_S - 0.5) == "wait"
    assert subject.decide(state, CLICK_S + at + TERM_GRACE_S + 0.5) == "kill"


@pytest.mark.parametrize("heard_after_s", [0.5, 7.5, 10.9])
def test_save_that_begins_late_gets_some_more_time_but_never_too_much(heard_after_s: float) -> None:
    subject = stop_requested()
    subject.state_changed(CLICK_S + heard_after_s)
    at = first_force(subject, "stopping")
    assert at is not None
    assert at <= MOST_S - TERM_GRACE_S - 1
    assert at >= min(MAX_SAVE_START_S, heard_after_s + SAVE_GRACE_S)


def test_save_that_grows_is_waited_for_as_long_as_it_does() -> None:
    subject = stop_requested()
    for second in range(100):
        subject.note_saving(CheckpointWrite(num_bytes=second + 1), CLICK_S + second)
        assert subject.decide("stopping", CLICK_S + second) == "wait"
    assert subject.decide("stopping", CLICK_S + 99 + STOP_GRACE_S - 0.1) == "wait"
    assert subject.decide("stopping", CLICK_S + 99 + STOP_GRACE_S + 0.1) == "terminate"


def test_save_that_is_on_its_way_to_a_slow_disk_gets_two_minutes() -> None:
    subject = stop_requested()
    subject.note_saving(CheckpointWrite(num_bytes=5), CLICK_S)
    second = 0
    while subject.decide("stopping", CLICK_S + second) == "wait":
        subject.note_saving(CheckpointWrite(num_bytes=5, is_at_disk=True), CLICK_S + second)
        second += 1
        assert second < FLUSH_S + 60
    assert second >= FLUSH_S


@pytest.mark.parametrize("ended_after_s", [0.5, 8.0, 11.0])
def test_run_that_has_ended_and_does_not_go_is_ended_in_time(ended_after_s: float) -> None:
    finished = Escalation(0.0)
    finished.state_changed(CLICK_S)
    assert first_force(finished, "finished") == pytest.approx(EXIT_GRACE_S, abs=0.2)
    subject = stop_requested()
    subject.state_changed(CLICK_S + ended_after_s)
    at = first_force(subject, "stopped")
    assert at is not None and ended_after_s < at + 0.1 <= MOST_S - TERM_GRACE_S + 0.1


def test_stop_requests_are_the_whole_lines_that_say_stop(tmp_path: Path) -> None:
    path = tmp_path / "commands.jsonl"
    requests = Incoming(path)
    assert requests.stops() == []
    stop = '{"name":"stop","id":"a"'
    path.write_text(f'not json\n[]\n3\n{{"name":"pause","id":"a"}}\n{stop},"time_unix_s":"x"}}\n{stop}')
    assert requests.stops() == []
    with path.open("a") as file:
        file.write(',"save":false,"time_unix_s":1}\n')
        file.writelines(f'{stop},"time_unix_s":{when}}}\n' for when in ("9e12", "NaN"))
    first, second, third = requests.stops()
    assert (first.save, command_age_s(first)) == (False, MAX_COMMAND_AGE_S)
    assert (second.save, command_age_s(second)) == (True, 0.0)
    assert command_age_s(third) == 0.0
