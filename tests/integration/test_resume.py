"""Resume: a stopped run continues exactly as if it had not been stopped."""

from __future__ import annotations

import shutil

import pytest

from ddp_gui.launch import launcher as launcher_module
from tests.harness import Launcher, LiveRun
from tests.integration.conftest import REFERENCE
from trainers.contract.rundir import RunDirectory, Status
from trainers.files.json_files import write_json_atomically

STEPS_PER_EPOCH = 23


def test_stopped_and_resumed_run_gives_the_same_bits_as_an_undisturbed_one(
    finished_run: LiveRun, launcher: Launcher
) -> None:
    """Model, optimizer, position in the epoch and order of the data are restored."""
    values = REFERENCE | {"num_epochs": 100_000, "checkpoint_every_steps": 10**6}
    values["eval_every_steps"] = 10**6  # a less frequent evaluation must not change the training either
    # No last step, so that even on a fast machine the run is still training when it is stopped.
    first = launcher.start(**values | {"max_steps": None})
    first.wait_for_step(STEPS_PER_EPOCH + 1)
    stopped_at = first.ask("stop")["step"]
    assert first.wait_for_end().state == "stopped", first.story()

    ends_at = {"max_steps": stopped_at + 4 * STEPS_PER_EPOCH}
    write_json_atomically(first.run.config, first.run.read_config().to_json() | ends_at)
    second = launcher.start_run(first.run, resume_step=stopped_at).finish()
    assert min(second.losses()) == stopped_at + 1
    undisturbed = launcher.start(**values | ends_at).finish()
    assert first.losses() | second.losses() == undisturbed.losses()
    assert second.events("eval")[-1]["loss"] == undisturbed.events("eval")[-1]["loss"]
    known = finished_run.losses()
    assert all(loss == known[step] for step, loss in undisturbed.losses().items() if step in known)

    whole = [event["seq"] for event in [*first.events()]]
    assert whole == list(range(len(whole))), "the second start numbers on from the first"


def test_three_ranks_resume_with_the_same_bits_too(launcher: Launcher) -> None:
    """With three or more ranks the order of summation matters, and DDP changes it after the first step."""
    values = {"dataset": "digits", "model": "mlp", "nproc_per_node": 3, "batch_size": 8}
    values |= {"max_steps": 20, "checkpoint_every_steps": 5, "eval_every_steps": 10**6}
    live = launcher.start(**values, keep_last_checkpoints=None).finish()
    undisturbed = live.losses()
    again = launcher.start_run(live.run, resume_step=5).finish()
    assert {step: loss for step, loss in undisturbed.items() if step > 5} == again.losses()


def test_resume_from_a_step_that_was_never_saved_fails_in_plain_words(
    finished_run: LiveRun, launcher: Launcher
) -> None:
    copy = RunDirectory(launcher.runs_dir / "copied-1")
    shutil.copytree(finished_run.run.path, copy.path)
    status = launcher.start_run(copy, resume_step=123).wait_for_end()
    assert status.state == "failed" and status.error is not None
    kept = ", ".join(str(item.step) for item in finished_run.run.list_checkpoints())
    assert kept.endswith("600")
    assert f"there is no complete checkpoint of step 123; complete checkpoints: {kept}." in status.error


@pytest.mark.parametrize("by", ["epochs", "max_steps"])
def test_run_that_was_killed_after_its_last_checkpoint_is_concluded_without_another_step(
    launcher: Launcher, by: str
) -> None:
    """The checkpoint was saved at the last step, before the epoch was counted and its end evaluated."""
    until = {"num_epochs": 1} if by == "epochs" else {"max_steps": 12}
    first = launcher.start(**until, checkpoint_every_steps=23 if by == "epochs" else 12).finish()
    num_steps = first.events("plan")[-1]["num_steps"]
    (kept,) = first.run.list_checkpoints()
    assert kept.step == num_steps, "saved at the last step, by the schedule"
    first.run.write_status(Status(state="failed", error="Rank 0 was killed."))

    assert launcher_module.pick_checkpoint(first.run, None).step == num_steps
    second = launcher.start_run(first.run, resume_step=num_steps).finish()
    assert second.losses() == {}, "nothing was trained"
    assert second.events("eval")[-1]["loss"] == first.events("eval")[-1]["loss"]
    assert second.events("state")[-1]["reason"] == f"All {num_steps} steps done."
