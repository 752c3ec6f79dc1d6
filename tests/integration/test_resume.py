"""Resume: a run that was stopped goes on exactly as if nobody had stopped it."""

from __future__ import annotations

from tests.harness import Launcher, LiveRun
from tests.integration.conftest import REFERENCE_STEPS


def test_stopped_and_resumed_run_gives_the_same_bits_as_an_undisturbed_one(
    finished_run: LiveRun, launcher: Launcher
) -> None:
    """Model, optimizer, place in the epoch and the data's order are all what they were."""
    values = finished_run.run.read_config().to_json() | {"checkpoint_every_steps": 10**6}
    values["eval_every_steps"] = 10**6  # slower evaluation schedules must not change the training either
    first = launcher.start(**values)
    first.wait_for_step(1)
    stopped_at = first.ask("stop")["step"]
    assert first.wait_for_end().state == "stopped", first.story()
    assert stopped_at < REFERENCE_STEPS, "the run was over before it could be stopped"

    second = launcher.start_run(first.run, resume_step=stopped_at)
    assert second.wait_for_end().state == "finished", second.story()
    assert min(second.losses()) == stopped_at + 1
    assert first.losses() | second.losses() == finished_run.losses()
    assert second.events("eval")[-1]["loss"] == finished_run.events("eval")[-1]["loss"]

    whole = [event["seq"] for event in [*first.events()]]
    assert whole == list(range(len(whole))), "the second start numbers on from the first"


def test_three_ranks_resume_with_the_same_bits_too(launcher: Launcher) -> None:
    """From three ranks on it matters in which order gradients add up, and DDP changes that after a step."""
    values = {"dataset": "digits", "model": "mlp", "nproc_per_node": 3, "batch_size": 8}
    values |= {"max_steps": 20, "checkpoint_every_steps": 5, "eval_every_steps": 10**6}
    live = launcher.start(**values, keep_last_checkpoints=None)
    assert live.wait_for_end().state == "finished", live.story()
    undisturbed = live.losses()
    again = launcher.start_run(live.run, resume_step=5)
    assert again.wait_for_end().state == "finished", again.story()
    assert {step: loss for step, loss in undisturbed.items() if step > 5} == again.losses()


def test_resume_from_a_step_that_was_never_saved_fails_in_plain_words(
    finished_run: LiveRun, launcher: Launcher
) -> None:
    live = launcher.start_run(finished_run.run.__class__(_copy_of(finished_run, launcher)), resume_step=123)
    status = live.wait_for_end()
    assert status.state == "failed"
    assert status.error is not None
    kept = ", ".join(str(item.step) for item in finished_run.run.list_checkpoints())
    assert kept.endswith("600")
    assert f"there is no whole checkpoint of step 123; there are: {kept}." in status.error


def _copy_of(live: LiveRun, launcher: Launcher):  # type: ignore[no-untyped-def]
    import shutil

    copy = launcher.runs_dir / "copied-1"
    shutil.copytree(live.run.path, copy)
    return copy
