"""Elapsed times of a run are not affected by changes of the system clock."""

from __future__ import annotations

import time

import pytest

from tests.harness import create_run
from trainers.contract import checkpoint_files
from trainers.contract.checkpoint_files import Sealing
from trainers.contract.rundir import RunDirectory
from trainers.machine import environment


def test_time_of_day_goes_on_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment.now_unix_s()
    assert abs(before - time.time()) < 5
    monkeypatch.setattr(time, "time", lambda: 1.0)
    assert before <= environment.now_unix_s() < before + 5


def save(run: RunDirectory, step: int) -> None:
    """Publish an empty checkpoint of this step."""
    aside = checkpoint_files.partial_path(run, step)
    aside.mkdir()
    with Sealing() as sealing:
        checkpoint_files.publish(run, step, {"reason": "schedule"}, sealing.finish(aside))


def test_newest_checkpoint_is_the_one_saved_last_also_after_the_clock_was_set_back(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path)
    save(run, 10)
    monkeypatch.setattr(checkpoint_files.time, "time", lambda: 1_000.0)
    save(run, 20)
    save(run, 15)
    assert max(run.list_checkpoints(), key=lambda item: item.saved_unix_s).step == 15
    checkpoint_files.retire(run, 15, keep_last=2, best_step=None)
    assert [item.step for item in run.list_checkpoints()] == [15, 20]
