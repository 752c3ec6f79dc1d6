"""Commands to a live run: the effect of each, and that every one is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, Launcher, LiveRun, wait_until
from trainers.contract import checkpoint_files
from trainers.contract.events import Event
from trainers.engines import liveness

NEW_RATE = 0.000_123


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A run that received several commands in turn, and its answers."""

    live: LiveRun
    answers: dict[str, Event]
    steps_while_paused: list[int]
    state_while_paused: str
    final_status: Any


@pytest.fixture(scope="module")
def conversation(shared_launcher: Launcher) -> Conversation:
    """Send all commands to one run in turn: checkpoint, set_lr, pause, checkpoint, resume, stop."""
    live = shared_launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6, eval_every_steps=10**6)
    answers = {}
    live.wait_for_step(1)
    answers["resume_unpaused"] = live.ask("resume")
    answers["checkpoint"] = live.ask("checkpoint")
    answers["set_lr"] = live.ask("set_lr", learning_rate=NEW_RATE)
    live.wait_for_step(answers["set_lr"]["step"] + 50)
    answers["pause"] = live.ask("pause")
    wait_until(
        "status.json saying paused",
        lambda: liveness.read_status(live.run).state == "paused",
        ANSWER_TIMEOUT_S,
    )
    answers["pause_again"] = live.ask("pause")
    answers["checkpoint_paused"] = live.ask("checkpoint")
    before = max(live.losses())
    state_while_paused = liveness.read_status(live.run).state
    num_ranks_events = len(live.events("ranks"))
    wait_until(
        "telemetry going on in the pause, which lasts longer than a step held up by others",
        lambda: len(live.events("ranks")) >= num_ranks_events + 3,
        ANSWER_TIMEOUT_S,
    )
    after = max(live.losses())
    answers["resume"] = live.ask("resume")
    live.wait_for_step(after + 50)
    live.run.append_command("no_such_command")  # type: ignore[arg-type]
    answers["stop"] = live.ask("stop")
    return Conversation(
        live=live,
        answers=answers,
        steps_while_paused=[before, after],
        state_while_paused=state_while_paused,
        final_status=live.wait_for_end(),
    )


def test_checkpoint_saves_and_training_goes_on(conversation: Conversation) -> None:
    answer = conversation.answers["checkpoint"]
    assert answer["accepted"]
    saved = [event for event in conversation.live.events("checkpoint") if event["step"] == answer["step"]]
    assert [event["reason"] for event in saved] == ["button"]
    checkpoint_files.verify(conversation.live.run, answer["step"])
    assert max(conversation.live.losses()) > answer["step"]


def test_set_lr_is_seen_from_the_next_step_on(conversation: Conversation) -> None:
    at = conversation.answers["set_lr"]["step"]
    rates = {event["step"]: event["lr"] for event in conversation.live.events("step")}
    assert {rate for step, rate in rates.items() if step <= at} == {0.002}
    assert {rate for step, rate in rates.items() if step > at} == {NEW_RATE}


def test_pause_stands_still_and_says_so(conversation: Conversation) -> None:
    before, after = conversation.steps_while_paused
    assert before == after == conversation.answers["pause"]["step"]
    assert conversation.state_while_paused == "paused"


def test_pausing_twice_and_resuming_what_runs_are_answered_with_no(conversation: Conversation) -> None:
    assert not conversation.answers["pause_again"]["accepted"]
    assert not conversation.answers["resume_unpaused"]["accepted"]


def test_checkpoint_works_during_a_pause(conversation: Conversation) -> None:
    answer = conversation.answers["checkpoint_paused"]
    assert answer["accepted"] and answer["step"] == conversation.answers["pause"]["step"]
    checkpoint_files.verify(conversation.live.run, answer["step"])


def test_resume_goes_on_with_the_next_step(conversation: Conversation) -> None:
    assert conversation.answers["resume"]["accepted"]
    steps = [event["step"] for event in conversation.live.events("step")]
    assert steps == list(range(1, len(steps) + 1))


def test_pause_is_not_counted_into_any_steps_time(conversation: Conversation) -> None:
    at = conversation.answers["pause"]["step"]
    times = {event["step"]: event["step_time_s"] for event in conversation.live.events("step")}
    assert min(times.values()) > 0
    moments = {event["state"]: event["time_unix_s"] for event in conversation.live.events("state")[:4]}
    assert list(moments) == ["starting", "running", "paused"], "running again is the later one"
    assert times[at + 1] < moments["running"] - moments["paused"], "with the pause in it, it took longer"


def test_unknown_command_is_a_warning_and_nothing_more(conversation: Conversation) -> None:
    (warning,) = conversation.live.events("warning")
    assert warning["code"] == "command_unreadable" and "no_such_command" in warning["message"]


def test_stop_saves_first_and_ends_as_stopped(conversation: Conversation) -> None:
    answer = conversation.answers["stop"]
    assert answer["accepted"]
    last_saved = conversation.live.events("checkpoint")[-1]
    assert (last_saved["step"], last_saved["reason"]) == (answer["step"], "stop")
    checkpoint_files.verify(conversation.live.run, answer["step"])
    assert max(conversation.live.losses()) == answer["step"], "no step after the one all ranks agreed on"
    status = conversation.final_status
    assert (status.state, status.exit_code, status.error) == ("stopped", 0, None)
    states = ["starting", "running", "paused", "running", "stopping", "stopped"]
    assert conversation.live.states() == states


def test_stop_without_saving_leaves_no_checkpoint_and_a_stop_while_starting_is_heard(
    launcher: Launcher,
) -> None:
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6)
    wait_until("torchrun being there", lambda: live.run.rank_log(0).exists(), START_TIMEOUT_S)
    live.run.append_command("stop", save=False)
    status = live.wait_for_end()
    assert status.state == "stopped", live.story()
    assert live.run.list_checkpoints() == []
    assert [event["accepted"] for event in live.events("command")] == [True]
    assert live.events("warning") == [], "it stopped by itself, nothing had to be forced"
