"""Hanging ranks: detected by heartbeats, reported with their source line, then terminated or waited for."""

from __future__ import annotations

import re
import time

from tests.faults.misbehaving import misbehaving
from tests.faults.test_bad_plugin import CopyWith, copy_with
from tests.harness import ANSWER_TIMEOUT_S, Launcher, LiveRun

__all__ = ["copy_with"]

# Short, to keep the tests fast. A hang takes this long to be detected, and some seconds to be reported and
# terminated. The documented limit is 45 s with a timeout of 10 s.
LIMIT_S = 2.0
MOST_S = LIMIT_S + 35.0


def wait_for_hang(live: LiveRun) -> dict[str, object]:
    """Return the error of a hanging run. Fails if termination takes too long or leaves a process."""
    status = live.is_over_within(MOST_S)
    assert status.state == "failed", live.story()
    assert live.states()[-1] == "failed"
    (error,) = live.events("error")
    assert error["code"] == "hang", live.story()
    numbers = [event["seq"] for event in live.events()]
    assert numbers == list(range(len(numbers)))
    return error


def dump_of(live: LiveRun) -> str:
    """Return the stacks stored with the run."""
    (path,) = live.run.logs.glob("hang_*.txt")
    return path.read_text(encoding="utf-8")


def test_stopped_rank_is_named_with_its_line(launcher: Launcher) -> None:
    """Suspends rank 0, which writes the events; another test suspends rank 1."""
    rank = 0
    live = launcher.start(num_epochs=100_000, hang_timeout_s=LIMIT_S, checkpoint_every_steps=10**6)
    live.wait_for_step(5)
    live.rank(rank).suspend()
    error = wait_for_hang(live)
    assert error["rank"] == rank
    assert f"rank {rank} was suspended from outside (SIGSTOP)" in str(error["message"])
    assert "trainers/" in str(error["message"]) and ".py:" in str(error["message"])
    assert "in run_rank" in str(error["traceback"])
    dump = dump_of(live)
    assert "===== rank 0: at step" in dump and "===== rank 1: at step" in dump
    assert dump.count("worker.py") >= 2, "both ranks' stacks"


def test_collective_that_a_sleeping_rank_never_entered_is_named(copy_with: CopyWith) -> None:
    """Torch's flight recorder reports it, over gloo: gradients of this strategy do not use shared memory."""
    live = copy_with(misbehaving("time.sleep(3600)")).start(
        model="misbehaves", strategy="zero2", hang_timeout_s=LIMIT_S
    )
    live.wait_for("step", lambda event: event["step"] >= 1)
    error = wait_for_hang(live)
    assert error["rank"] == 1
    message = str(error["message"])
    assert "rank 1 is stuck, and the others wait" in message
    assert "rank 1 is at step 5" in message and "models/misbehaves.py:" in message and "forward" in message
    said = re.search(r"Rank 1 never entered ([a-z-]+) \d+ \(float32, .*\), in which rank 0 waits\.", message)
    assert said is not None, live.story()
    assert "Rank 1 never entered" in dump_of(live)


def test_collective_that_one_rank_skips_is_told_as_waiting_for_each_other(copy_with: CopyWith) -> None:
    live = copy_with(misbehaving("__import__('torch').distributed.barrier()")).start(
        model="misbehaves", hang_timeout_s=LIMIT_S
    )
    live.wait_for("step", lambda event: event["step"] >= 1)
    error = wait_for_hang(live)
    message = str(error["message"])
    assert "wait for each other" in message, live.story()
    assert "rank 0 is at step 5" in message and "rank 1 is at step 5" in message
    assert "models/misbehaves.py:" in message, "the line of the collective the others never reach"
    assert "same collectives" in str(error["hint"])


def test_hang_is_waited_for_where_that_was_chosen_and_the_run_goes_on(launcher: Launcher) -> None:
    live = launcher.start(num_epochs=100_000, hang_timeout_s=LIMIT_S, on_hang="wait", eval_every_steps=10**6)
    live.wait_for_step(5)
    live.rank(1).suspend()
    hang = live.wait_for("warning", timeout_s=ANSWER_TIMEOUT_S)
    assert (hang["code"], hang["rank"]) == ("hang", 1)
    assert "This run keeps waiting if it hangs" in hang["hint"]
    time.sleep(1.5 * LIMIT_S)
    assert len(live.events("warning")) == 1, "said once"
    live.rank(1).resume()
    live.wait_for("warning", lambda event: event["code"] == "hang_over", timeout_s=ANSWER_TIMEOUT_S)
    newest = live.events("step")[-1]["step"]
    live.wait_for_step(newest + 20)
    numbers = [event["seq"] for event in live.events()]
    assert numbers == list(range(len(numbers)))
    live.run.append_command("stop")
    assert live.wait_for_end().state == "stopped", live.story()


LONG_STEP_S = 3 * LIMIT_S
COMPUTES = f"any(time.monotonic() > end for end in [time.monotonic() + {LONG_STEP_S}] for _ in iter(int, 1))"


def test_long_step_and_a_pause_are_no_hang(copy_with: CopyWith) -> None:
    live = copy_with(misbehaving(COMPUTES)).start(
        model="misbehaves", hang_timeout_s=LIMIT_S, num_epochs=100_000, eval_every_steps=10**6
    )
    live.wait_for_step(6)
    live.ask("pause")
    time.sleep(2 * LIMIT_S)
    live.ask("stop", save=False)
    assert live.wait_for_end().state == "stopped", live.story()
    assert live.events("warning") == live.events("error") == []
