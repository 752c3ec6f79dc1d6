"""A resumed run: its length with another batch or more epochs, its ranks, and its stored data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_gui.auth.rights import DataAccess
from ddp_gui.devices import capacity
from ddp_gui.devices.capacity import Machine
from ddp_gui.events.event_reader import Digest
from ddp_gui.events.run_view import RunView
from ddp_gui.launch import launcher
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore, total_steps
from ddp_gui.train import api
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.stand_in import FOUR_GPUS, LAPTOP, FakeDevices, Supervisors
from trainers.contract import rundir
from trainers.contract.config import Config, ConfigError
from trainers.contract.events import encode_event
from trainers.contract.rundir import Checkpoint, RunDirectory, Status

WAYS = ("keep", "rescale")


@pytest.fixture
def start(tmp_path: Path) -> Callable[[plan.Plan], RunDirectory]:
    return lambda planned: launcher.create(tmp_path / "runs", planned, "")


def planned(catalogue: Catalogue, **raw: Any) -> plan.Plan:
    return plan.make(plan.parse(raw, LAPTOP), catalogue, LAPTOP)


def test_what_training_says_of_its_length_counts_and_not_what_was_expected(
    catalogue: Catalogue, start: Callable[[plan.Plan], RunDirectory]
) -> None:
    run = start(planned(catalogue, batch_size=100, nproc_per_node=2, num_epochs=3))  # 40 steps per epoch
    view = RunView(run, total_steps(run.read_config(), catalogue))
    assert view.total_steps == 120
    about = {"num_train": 8000, "num_validation": 1, "num_parameters": 7, "global_batch": 100}
    line = {"seq": 0, "time_unix_s": 1.0, "kind": "plan", **about, "steps_per_epoch": 80, "num_steps": 180}
    run.events.write_bytes(encode_event(line) + b"\n")
    view.catch_up()
    assert view.total_steps == 180
    digest = Digest()
    digest.catch_up(run.events)
    assert digest.num_steps == 180


def test_the_data_of_the_checkpoint_ends_it(
    catalogue: Catalogue, start: Callable[[plan.Plan], RunDirectory]
) -> None:
    """A model's own tokenizer splits a text into more samples than the page expects."""
    expected = planned(catalogue, batch_size=100, nproc_per_node=2, num_epochs=1)  # 40 steps
    run = start(expected)
    leave_checkpoint(run, num_train=16_000, step=50, epoch=0, samples_in_epoch=10_000)
    assert launcher.checkpoint_to_resume(run, None, expected).step == 50
    leave_checkpoint(run, num_train=16_000, step=80, epoch=1, samples_in_epoch=0)
    assert launcher.checkpoint_to_resume(run, None, expected).step == 80, "to be concluded"
    run.write_status(Status(state="finished"))
    with pytest.raises(ValueError, match="has done all of its 80 steps"):
        launcher.checkpoint_to_resume(run, None, expected)


def test_a_larger_batch_is_not_the_end(
    catalogue: Catalogue, start: Callable[[plan.Plan], RunDirectory]
) -> None:
    run = start(planned(catalogue, batch_size=100, nproc_per_node=1, num_epochs=2))  # 160 steps
    leave_checkpoint(run, step=120, epoch=1, samples_in_epoch=4000)
    after = planned(catalogue, batch_size=100, nproc_per_node=4, num_epochs=2)
    assert after.num_steps == 40
    assert launcher.checkpoint_to_resume(run, None, after).step == 120
    leave_checkpoint(run, step=130, epoch=2, samples_in_epoch=0)
    run.write_status(Status(state="finished"))
    with pytest.raises(ValueError, match="has done all of its 130 steps"):
        launcher.checkpoint_to_resume(run, None, after)


def test_the_global_batch_is_kept_only_where_it_can_be(catalogue: Catalogue) -> None:
    before = Config(batch_size=64, nproc_per_node=2)
    assert launcher.other_ranks(before, catalogue, 4, "keep") == {"nproc_per_node": 4, "batch_size": 32}
    assert launcher.other_ranks(before, catalogue, 1, "keep") == {"nproc_per_node": 1, "batch_size": 128}
    assert launcher.other_ranks(before, catalogue, 3, "rescale") == {"nproc_per_node": 3}
    for same in (2, None):
        assert launcher.other_ranks(before, catalogue, same, "keep") == {}
    with pytest.raises(ConfigError, match="the global batch of 128 can be shared, or global_batch rescale"):
        launcher.other_ranks(before, catalogue, 3, "keep")
    with pytest.raises(ConfigError, match="global_batch is 'half'; allowed: keep or rescale"):
        launcher.other_ranks(before, catalogue, 3, "half")
    with pytest.raises(ConfigError, match="nproc_per_node is 0"):
        launcher.other_ranks(before, catalogue, 0, "keep")
    scaled = replace(before, scale_lr=True, learning_rate=0.01)
    kept, rescaled = (replace(scaled, **launcher.other_ranks(scaled, catalogue, 1, way)) for way in WAYS)
    assert kept.peak_learning_rate(1) == scaled.peak_learning_rate(2) == 0.02
    assert rescaled.peak_learning_rate(1) == 0.01


def test_a_run_of_more_gpus_than_there_are_here_goes_on_with_fewer(
    catalogue: Catalogue,
    start: Callable[[plan.Plan], RunDirectory],
    supervisors: Supervisors,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = start(planned(catalogue, nproc_per_node=4, batch_size=32))
    leave_checkpoint(run, step=5, epoch=0, samples_in_epoch=640)
    run.write_status(Status(state="stopped"))
    store = RunStore(run.path.parent, cast("CatalogueSource", SimpleNamespace(get=lambda: catalogue)))
    monkeypatch.setattr(capacity, "read", lambda _engine, _config: Machine(num_gpus=2, num_cores=8))
    line = Scheduler(store.runs_dir, FakeDevices(None, FOUR_GPUS[:2]), store.read_again)
    page = api.Api(store, line, QueuePresenter(line, store), DataAccess(store.runs_dir))
    answer = asyncio.run(page.resume_run(run.run_id, None, 2))
    assert answer["message"] == "Continuing from step 5."
    config = run.read_config()
    assert (config.nproc_per_node, config.batch_size) == (2, 64)
    supervisors.end(run)
    with pytest.raises(ValueError, match="nproc_per_node is 4; allowed:"):
        asyncio.run(page.resume_run(run.run_id, None, 4))


def checkpoint(tmp_path: Path, *, epoch: int, samples_in_epoch: int) -> Checkpoint:
    run = rundir.create(tmp_path, Config(), lambda _run: None)
    leave_checkpoint(run, step=5, epoch=epoch, samples_in_epoch=samples_in_epoch)
    return run.list_checkpoints()[0]


def test_early_stopping_that_ended_a_run_does_not_end_it_again(tmp_path: Path) -> None:
    at = checkpoint(tmp_path, epoch=3, samples_in_epoch=0)
    changes = launcher.more_epochs(at, 1, stopped_early=True)
    assert changes == {"num_epochs": 4, "max_steps": None, "early_stopping_patience": None}


@pytest.mark.parametrize("nonsense", [0, 1.5, True, "10", "", 100_001, []])
def test_nonsense_is_refused_by_name(tmp_path: Path, nonsense: Any) -> None:
    at = checkpoint(tmp_path, epoch=3, samples_in_epoch=0)
    with pytest.raises(ConfigError, match=r"more_epochs is .*; allowed: a whole number from 1 to 100,000"):
        launcher.more_epochs(at, nonsense, stopped_early=False)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "equals that of a run"),
        ({"warmup_steps": 100}, "equals that of a run"),
        ({"warmup_steps": 101}, "differs slightly"),
        ({"lr_schedule": "cosine"}, "The cosine schedule will span all epochs: the learning rate jumps up"),
        ({"lr_schedule": "one_cycle"}, "The one-cycle schedule"),
    ],
)
def test_it_is_said_whether_the_result_is_the_same(values: dict[str, Any], words: str) -> None:
    assert words in launcher.more_epochs_note(Config(**values), num_steps=100)
