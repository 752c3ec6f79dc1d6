"""Commands to a live run: the effect of each, and that every one is answered."""

from __future__ import annotations

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, Launcher, wait_until
from trainers.contract import checkpoint_files
from trainers.engines import liveness

NEW_RATE = 0.000_123


def test_each_command_has_its_effect_and_its_answer(launcher: Launcher) -> None:
    """One run gets all in turn; at the end Stop twice during a checkpoint, and Checkpoint during Stop."""
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6, eval_every_steps=10**6)
    live.wait_for_step(1)
    assert not live.ask("resume")["accepted"], "it is not paused"
    checkpoint = live.ask("checkpoint")
    set_lr = live.ask("set_lr", learning_rate=NEW_RATE)
    live.wait_for_step(set_lr["step"] + 50)
    pause = live.ask("pause")
    wait_until(
        "status.json saying paused",
        lambda: liveness.read_status(live.run).state == "paused",
        ANSWER_TIMEOUT_S,
    )
    assert not live.ask("pause")["accepted"], "it is paused"
    paused_checkpoint = live.ask("checkpoint")
    assert max(live.losses()) == pause["step"] == paused_checkpoint["step"]
    num_ranks_events = len(live.events("ranks"))
    wait_until(
        "telemetry going on in the pause, which lasts longer than a step held up by others",
        lambda: len(live.events("ranks")) >= num_ranks_events + 3,
        ANSWER_TIMEOUT_S,
    )
    assert max(live.losses()) == pause["step"], "it stands still"
    resume = live.ask("resume")
    live.wait_for_step(pause["step"] + 50)
    live.run.append_command("no_such_command")  # type: ignore[arg-type]
    asked = [live.run.append_command(name) for name in ("checkpoint", "stop", "stop", "checkpoint")]
    status = live.wait_for_end()
    answers = {event["id"]: event for event in live.events("command")}
    late_checkpoint, stop, second_stop = (answers[each] for each in asked[:3])
    live.wait_for_no_process(ANSWER_TIMEOUT_S)
    assert (status.state, status.exit_code, status.error) == ("stopped", 0, None)
    assert live.states() == ["starting", "running", "paused", "running", "stopping", "stopped"]

    for answer in (checkpoint, set_lr, pause, paused_checkpoint, resume, late_checkpoint, stop, second_stop):
        assert answer["accepted"], answer
    (warning,) = live.events("warning")
    assert warning["code"] == "command_unreadable" and "no_such_command" in warning["message"]
    reasons = {event["step"]: event["reason"] for event in live.events("checkpoint")}
    by_button = {answer["step"]: "button" for answer in (checkpoint, pause, late_checkpoint)}
    assert reasons == by_button | {stop["step"]: "stop"}
    for step in reasons:
        checkpoint_files.verify(live.run, step)
    steps = live.events("step")
    assert [event["step"] for event in steps] == list(range(1, stop["step"] + 1)), "no step after the stop"
    rates = {event["step"]: event["lr"] for event in steps}
    assert {rate for step, rate in rates.items() if step <= set_lr["step"]} == {0.002}
    assert {rate for step, rate in rates.items() if step > set_lr["step"]} == {NEW_RATE}
    times = {event["step"]: event["step_time_s"] for event in steps}
    moments = {event["state"]: event["time_unix_s"] for event in live.events("state")[:4]}
    assert list(moments) == ["starting", "running", "paused"], "running again is the later one"
    paused_s = moments["running"] - moments["paused"]
    assert 0 < times[pause["step"] + 1] < paused_s, "no step has the pause in it"


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
