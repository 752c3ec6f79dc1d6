"""A full disk: a checkpoint that cannot be saved is a warning, and training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Launcher
from trainers.checkpoint import save_and_restore


@pytest.fixture
def small_launcher(small_disk: Path) -> Iterator[Launcher]:
    """Start runs on the small disk."""
    launcher = Launcher(small_disk)
    yield launcher
    launcher.close()


def test_checkpoint_onto_a_full_disk_is_a_warning_and_training_goes_on(
    small_launcher: Launcher, small_disk: Path
) -> None:
    # Large, so that what has no room for a checkpoint has it for the events of many minutes.
    live = small_launcher.start(
        model_size="large", num_epochs=100_000, checkpoint_every_steps=10**6, eval_every_steps=10**6
    )
    live.wait_for_step(1)
    first = live.ask("checkpoint")
    assert first["accepted"], live.story()

    ballast = small_disk / "ballast"
    (saved,) = live.events("checkpoint")
    left = saved["size_bytes"] * 3 // 4
    ballast.write_bytes(b"x" * (_free_bytes(small_disk) - left))
    second = live.ask("checkpoint")
    assert not second["accepted"]
    (warning,) = live.events("warning")
    assert warning["code"] == "checkpoint_failed"
    assert "rank 0 could not write" in warning["message"] and "Free some space" in warning["hint"]
    live.wait_for_step(second["step"] + 20)
    assert [item.step for item in live.run.list_checkpoints()] == [first["step"]]
    assert sorted(path.name for path in live.run.checkpoints.iterdir()) == [f"step_{first['step']}"]

    # A stop that cannot save loses nothing: it is refused, and the run goes on.
    refused = live.ask("stop")
    assert not refused["accepted"]
    assert "Nothing could be saved" in refused["message"]
    live.wait_for_step(refused["step"] + 20)
    assert live.states()[-2:] == ["stopping", "running"]

    ballast.unlink()
    stopped = live.ask("stop")
    assert live.wait_for_end().state == "stopped", live.story()
    for item in live.run.list_checkpoints():
        save_and_restore.verify(live.run, item.step)
    assert live.run.list_checkpoints()[-1].step == stopped["step"]


def _free_bytes(folder: Path) -> int:
    import os

    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize
