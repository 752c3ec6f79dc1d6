"""A stop that is not obeyed: force after a while, and nothing left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

import ddp_gui.launcher
from tests.faults.test_bad_plugin import CopyWith, copy_with, misbehaving
from tests.harness import START_TIMEOUT_S, Launcher, wait_until

__all__ = ["copy_with"]

# What people are promised, and so it stays on a busy machine as well: a forced stop is made of waits, not of
# work. Its whole test took 12.6 s beside four and 13.1 s beside eight busy programs on two cores.
DEADLINE_S = 15.0


def test_stop_of_a_hanging_run_is_forced_and_leaves_nothing(launcher: Launcher) -> None:
    """Rank 1 is frozen, so that no command can be agreed on."""
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=100)
    live.wait_for("checkpoint")
    live.rank(1).suspend()
    live.run.append_command("stop")
    status = live.is_over_within(DEADLINE_S)
    newest = live.run.list_checkpoints()[-1].step
    assert status.state == "stopped", live.story()
    (warning,) = live.events("warning")
    assert warning["code"] == "stop_forced"
    assert "did not stop by itself in time" in warning["message"]
    assert f"Resume goes on from the checkpoint of step {newest}." in warning["hint"]
    assert live.states()[-1] == "stopped"


def test_sigterm_to_the_supervisor_ends_everything_at_once(launcher: Launcher) -> None:
    """What a system does when it shuts down."""
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6)
    live.wait_for_step(1)
    live.supervisor.send_signal(signal.SIGTERM)
    status = live.is_over_within(DEADLINE_S)
    assert status.state == "stopped", live.story()
    assert "SIGTERM" in live.events("warning")[-1]["message"]


@pytest.mark.parametrize("stays_stopped", [False, True])
def test_stop_by_the_page_of_a_run_whose_supervisor_is_frozen(
    launcher: Launcher, stays_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page lets it go on; where that does not help, it ends it with all below it."""
    if stays_stopped:
        monkeypatch.setattr(psutil.Process, "resume", lambda process: None)
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6)
    live.wait_for_step(1)
    wait_until(
        "status.json saying running", lambda: live.run.read_status().state == "running", START_TIMEOUT_S
    )
    live.supervisor.send_signal(signal.SIGSTOP)
    if stays_stopped:
        live.rank(1).suspend()  # else rank 0 would obey by itself
    asked_at = time.monotonic()
    ddp_gui.launcher.send(live.run, "stop")
    status = live.is_over_within(DEADLINE_S)
    left_s = DEADLINE_S - (time.monotonic() - asked_at)
    wait_until("the last word", lambda: live.run.read_status().state == "stopped", left_s)
    forced = [event["code"] for event in live.events("warning")]
    assert forced == (["stop_forced"] if stays_stopped else []), live.story()
    # Whoever wrote the last word held the lock meanwhile.
    wait_until("nobody owning the run", lambda: not live.run.is_locked(), START_TIMEOUT_S)
    assert live.states()[-1] == "stopped", status


def test_stop_during_a_long_evaluation_leaves_it_and_saves_the_step(
    copy_with: CopyWith, tmp_path: Path
) -> None:
    """Each of its 23 batches takes rank 1 a second."""
    evaluates = tmp_path / "evaluates"
    how = f"(time.sleep(1), self.training or open({str(evaluates)!r}, 'w').close())"
    live = copy_with(misbehaving(how)).start(
        model="misbehaves", batch_size=1, eval_every_steps=5, checkpoint_every_steps=10**6
    )
    wait_until("the evaluation", evaluates.exists, START_TIMEOUT_S)
    answer = live.ask("stop")
    assert answer["accepted"] and answer["step"] == 5, live.story()
    assert live.wait_for_end(DEADLINE_S).state == "stopped", live.story()
    assert live.events("eval") == [] and live.events("warning") == []
    assert [item.step for item in live.run.list_checkpoints()] == [5]
