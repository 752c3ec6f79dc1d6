"""A stop that is not obeyed: force after a while, and nothing left."""

from __future__ import annotations

import signal
import time

from tests.harness import Launcher

DEADLINE_S = 15.0


def test_stop_of_a_hanging_run_is_forced_and_leaves_nothing(launcher: Launcher) -> None:
    """Rank 1 is frozen, so that no command can be agreed on."""
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=100)
    live.wait_for("checkpoint")
    live.rank(1).suspend()
    asked_at = time.monotonic()
    live.run.append_command("stop")
    status = live.wait_for_end(DEADLINE_S)
    live.wait_for_no_process(DEADLINE_S - (time.monotonic() - asked_at))
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
    asked_at = time.monotonic()
    live.supervisor.send_signal(signal.SIGTERM)
    status = live.wait_for_end(10.0)
    live.wait_for_no_process(10.0 - (time.monotonic() - asked_at))
    assert status.state == "stopped", live.story()
    assert "SIGTERM" in live.events("warning")[-1]["message"]
