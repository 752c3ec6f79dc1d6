"""Tests of a run's length after a resume with another batch, and of its stored data description."""

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
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.stand_in import FOUR_GPUS, FakeDevices, Supervisors, supervisors  # noqa: F401 - a fixture
from trainers.contract.config import Config, ConfigError
from trainers.contract.events import encode_event
from trainers.contract.rundir import RunDirectory, Status

LAPTOP = Machine(num_gpus=0, num_cores=8)


@pytest.fixture
def start(tmp_path: Path) -> Callable[[plan.Plan], RunDirectory]:
    """Return a function that creates runs without starting them."""
    return lambda planned: launcher.create(tmp_path / "runs", planned, "")


def planned(catalogue: Catalogue, **raw: Any) -> plan.Plan:  # noqa: F811
    return plan.make(plan.parse(raw, LAPTOP), catalogue, LAPTOP)


def test_what_training_says_of_its_length_counts_and_not_what_was_expected(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
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


def test_the_end_is_where_the_data_of_the_checkpoint_ends(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
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


def test_a_larger_batch_is_not_taken_for_the_end_of_the_run(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
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


def test_the_global_batch_is_kept_only_where_it_can_be(catalogue: Catalogue) -> None:  # noqa: F811
    before = Config(batch_size=64, nproc_per_node=2)
    assert launcher.other_ranks(before, catalogue, 4, "keep") == {"nproc_per_node": 4, "batch_size": 32}
    assert launcher.other_ranks(before, catalogue, 1, "keep") == {
        "nproc_per_node": 1,
        "batch_size": 128,
    }
    assert launcher.other_ranks(before, catalogue, 3, "rescale") == {"nproc_per_node": 3}
    assert (
        launcher.other_ranks(before, catalogue, 2, "keep")
        == launcher.other_ranks(before, catalogue, None, "keep")
        == {}
    )
    with pytest.raises(ConfigError, match="the global batch of 128 can be shared, or global_batch rescale"):
        launcher.other_ranks(before, catalogue, 3, "keep")
    with pytest.raises(ConfigError, match="global_batch is 'half'; allowed: keep or rescale"):
        launcher.other_ranks(before, catalogue, 3, "half")
    with pytest.raises(ConfigError, match="nproc_per_node is 0"):
        launcher.other_ranks(before, catalogue, 0, "keep")


def test_a_rate_that_is_scaled_stays_with_the_global_batch(catalogue: Catalogue) -> None:  # noqa: F811
    before = Config(batch_size=64, nproc_per_node=2, scale_lr=True, learning_rate=0.01)
    kept = launcher.other_ranks(before, catalogue, 1, "keep")
    assert replace(before, **kept).peak_learning_rate(1) == before.peak_learning_rate(2) == 0.02
    rescaled = launcher.other_ranks(before, catalogue, 1, "rescale")
    assert replace(before, **rescaled).peak_learning_rate(1) == 0.01


def test_a_run_of_more_gpus_than_there_are_here_goes_on_with_fewer(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
    supervisors: Supervisors,  # noqa: F811
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
