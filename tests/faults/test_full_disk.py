"""A full disk: a failed checkpoint is a warning, training continues, and Stop all works."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scenes.disks import fill
from tests.harness import END_TIMEOUT_S, REPOSITORY, SMALL, START_TIMEOUT_S, Launcher, wait_until
from tests.integration.test_polls import served
from tests.unit.class_of import ANN, EVE
from trainers.contract import checkpoint_files
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness


@pytest.fixture
def small_launcher(small_disk: Path) -> Iterator[Launcher]:
    """Return a launcher of runs on the small disk."""
    launcher = Launcher(small_disk, REPOSITORY)
    yield launcher
    launcher.close()


def test_checkpoint_onto_a_full_disk_is_a_warning_and_training_goes_on(
    small_launcher: Launcher, small_disk: Path
) -> None:
    # Large, so that space too small for a checkpoint suffices for the events of many minutes.
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

    # A stop whose save fails is refused, and the run continues without any loss.
    refused = live.ask("stop")
    assert not refused["accepted"]
    assert "Nothing could be saved" in refused["message"]
    live.wait_for_step(refused["step"] + 20)
    assert live.states()[-2:] == ["stopping", "running"]

    ballast.unlink()
    stopped = live.ask("stop")
    assert live.wait_for_end().state == "stopped", live.story()
    for item in live.run.list_checkpoints():
        checkpoint_files.verify(live.run, item.step)
    assert live.run.list_checkpoints()[-1].step == stopped["step"]


def test_stop_all_stops_on_a_full_disk_and_every_answer_is_a_sentence(
    small_disk: Path, tmp_path: Path
) -> None:
    config = SMALL | {"num_epochs": 100_000, "nproc_per_node": 1, "checkpoint_every_steps": 10**6}
    with served(tmp_path, (ANN, EVE), runs_dir=small_disk) as (ann, eve):
        live = RunDirectory(small_disk / ann.ask("start_run", config, False)["run_id"])
        wait_until("a live run", lambda: liveness.read_status(live).state == "running", START_TIMEOUT_S)
        queued = ann.ask("start_run", config | {"nproc_per_node": 2}, False)
        assert queued["place"] == 1
        ballast = fill(small_disk)
        for endpoint, values in {
            "edit_run": (live.run_id, "a new name", None, None),
            "set_limits": ({"num_ranks": 1}, None),
            "pause_run": (live.run_id,),
        }.items():
            _top_up(ballast)
            said = eve.ask(endpoint, *values)
            assert f"disk of {small_disk}" in said and "is full: delete runs" in said, (endpoint, said)
            assert "Errno" not in said
        refused = eve.ask("start_run", config, False)
        assert re.match(rf"the disk of {small_disk} has .* free, and 2.5 MB are reserved", refused), refused
        assert sorted(path.name for path in small_disk.glob("digits-*")) == [live.run_id, queued["run_id"]]

        stopped = eve.ask("stop_all")
        assert stopped["stopping"] == [live.run_id]
        # If a few bytes are free again, the run receives the command, cannot save, and stops without a
        # checkpoint.
        assert "queue is paused" in stopped["message"] and "Errno" not in stopped["message"]
        wait_until("the end", lambda: liveness.read_status(live).state == "stopped", END_TIMEOUT_S)
        assert eve.ask("queue")["is_paused"], "or the queued run would start now"
        assert ann.ask("stop_run", queued["run_id"], True)["state"] == "stopped"

        ballast.unlink()
        stored = small_disk / ".class" / "queue.json"
        wait_until("the pause on the disk", lambda: '"is_paused": true' in stored.read_text(), END_TIMEOUT_S)


def _top_up(ballast: Path) -> None:
    """Fill the space that was freed since: the page and the run replace small files."""
    size = 2**20
    with ballast.open("ab", buffering=0) as file:
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def _free_bytes(folder: Path) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize
