"""How long a run is after a resume with another batch, and what is known of its data later on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui import api, launcher, notes, plan
from ddp_gui.catalogue import Catalogue
from ddp_gui.machine import Machine
from ddp_gui.runs import RunView, total_steps
from tests.unit.test_gui_plan import catalogue  # noqa: F401 - a fixture
from trainers.contract import config as config_module
from trainers.contract import rundir
from trainers.contract.config import Config, ConfigError
from trainers.contract.rundir import RunDirectory, write_json_atomically
from trainers.sharding import ShardedBatches

LAPTOP = Machine(num_gpus=0, num_cores=8)
NUM_TRAIN = 1000


def steps_left(config: Config, position: notes.Position, num_ranks: int) -> int:
    """Count the steps training really makes from a position on, by the batches a rank gets."""
    batches = ShardedBatches(
        NUM_TRAIN,
        config.batch_size,
        num_accumulated=config.gradient_accumulation_steps,
        seed=0,
        replica=0,
        num_replicas=num_ranks,
    )
    steps, samples = 0, position.samples_in_epoch
    for epoch in range(position.epoch, config.num_epochs):
        batches.set_epoch(epoch)
        steps += sum(batch.is_last for batch in batches.starting_at(samples))
        samples = 0
    return steps


@pytest.mark.parametrize("samples_in_epoch", [0, 64, 640, 960, 1000])
@pytest.mark.parametrize(("num_ranks", "batch_size", "accumulated"), [(2, 32, 1), (1, 32, 1), (3, 32, 2)])
def test_a_resumed_run_is_as_long_as_training_makes_it(
    samples_in_epoch: int, num_ranks: int, batch_size: int, accumulated: int
) -> None:
    config = config_module.parse(
        {"batch_size": batch_size, "gradient_accumulation_steps": accumulated, "num_epochs": 4}
    )
    position = notes.Position(step=16 + samples_in_epoch // 64, epoch=1, samples_in_epoch=samples_in_epoch)
    expected = position.step + steps_left(config, position, num_ranks)
    assert position.num_steps(config, NUM_TRAIN, num_ranks) == expected


def test_with_the_batch_it_had_a_run_keeps_its_length_and_its_limit() -> None:
    config = config_module.parse({"batch_size": 32, "num_epochs": 4})
    for step in range(1, config.num_steps(NUM_TRAIN, 2)):
        epoch, of_epoch = divmod(step, config.steps_per_epoch(NUM_TRAIN, 2))
        here = notes.Position(step=step, epoch=epoch, samples_in_epoch=of_epoch * 64)
        assert here.num_steps(config, NUM_TRAIN, 2) == config.num_steps(NUM_TRAIN, 2) == 64
    limited = replace(config, max_steps=20)
    assert notes.Position(step=10, epoch=0, samples_in_epoch=640).num_steps(limited, NUM_TRAIN, 2) == 20


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[plan.Plan], RunDirectory]:
    """Start runs without a supervisor."""
    monkeypatch.setattr(launcher, "_start_supervisor", lambda run, step: None)
    return lambda planned: launcher.start(tmp_path / "runs", planned)


def save(run: RunDirectory, **progress: int) -> None:
    """Leave a checkpoint the way training does."""
    folder = run.checkpoints / f"step_{progress['step']}"
    folder.mkdir()
    write_json_atomically(folder / "state.json", {"progress": progress})
    manifest = {"saved_unix_s": progress["step"], "files": {}}
    write_json_atomically(folder / "manifest.json", manifest)


def planned(catalogue: Catalogue, **raw: Any) -> plan.Plan:  # noqa: F811
    return plan.make(plan.parse(raw, LAPTOP), catalogue, LAPTOP)


def test_a_rescaled_resume_changes_the_total_and_going_back_restores_it(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
) -> None:
    before = planned(catalogue, batch_size=100, nproc_per_node=2, num_epochs=3)  # 40 steps an epoch
    run = start(before)
    save(run, step=40, epoch=1, samples_in_epoch=0)
    save(run, step=60, epoch=1, samples_in_epoch=4000)
    after = planned(catalogue, batch_size=100, nproc_per_node=1, num_epochs=3)
    assert launcher.restart(run, None, after).step == 60
    assert run.read_config().nproc_per_node == 1
    assert total_steps(run, run.read_config(), catalogue) == 60 + 40 + 80
    assert RunView(run, catalogue).total_steps == 180
    launcher.restart(run, 40, before)
    assert total_steps(run, run.read_config(), catalogue) == 120
    assert not (run.path / notes.RESUMED).exists()


def test_a_larger_batch_is_not_taken_for_the_end_of_the_run(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
) -> None:
    run = start(planned(catalogue, batch_size=100, nproc_per_node=1, num_epochs=2))  # 160 steps
    save(run, step=120, epoch=1, samples_in_epoch=4000)
    after = planned(catalogue, batch_size=100, nproc_per_node=4, num_epochs=2)
    assert after.num_steps == 40
    assert launcher.restart(run, None, after).step == 120
    assert total_steps(run, run.read_config(), catalogue) == 130
    save(run, step=130, epoch=2, samples_in_epoch=0)
    with pytest.raises(ValueError, match="has done all of its 130 steps"):
        launcher.restart(run, None, after)


def test_a_resume_that_does_not_come_up_leaves_the_configuration(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = start(planned(catalogue, nproc_per_node=2))
    save(run, step=5, epoch=0, samples_in_epoch=640)

    def refuse(run: RunDirectory, step: int | None) -> None:
        raise launcher.LaunchError("no")

    monkeypatch.setattr(launcher, "_start_supervisor", refuse)
    with pytest.raises(launcher.LaunchError):
        launcher.restart(run, None, planned(catalogue, nproc_per_node=1))
    assert run.read_config().nproc_per_node == 2


def test_a_run_knows_its_data_where_the_catalogue_does_not(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
) -> None:
    own = replace(catalogue.datasets["fashion_mnist"], name="own", label="Your own data", num_train=640)
    known = catalogue.with_dataset(own, {"cnn": {"small": 11, "large": 110}})
    run = start(planned(known, dataset="own", data_path="/somewhere/gone", num_epochs=2))
    assert total_steps(run, run.read_config(), catalogue) is None, "the catalogue alone cannot say"
    seen = notes.with_noted_data(run, catalogue)
    assert total_steps(run, run.read_config(), seen) == 10
    assert seen.datasets["own"].label == "Your own data"
    assert seen.models["cnn"].sizes[1].num_parameters["own"] == 110
    (run.path / notes.DATA).write_text("{half")
    assert notes.with_noted_data(run, catalogue) is catalogue


def test_the_global_batch_is_kept_only_where_it_can_be(catalogue: Catalogue) -> None:  # noqa: F811
    before = planned(catalogue, batch_size=64, nproc_per_node=2)
    assert api._other_ranks(before, 4, "keep") == {"nproc_per_node": 4, "batch_size": 32}
    assert api._other_ranks(before, 1, "keep") == {"nproc_per_node": 1, "batch_size": 128}
    assert api._other_ranks(before, 3, "rescale") == {"nproc_per_node": 3}
    assert api._other_ranks(before, 2, "keep") == api._other_ranks(before, None, "keep") == {}
    with pytest.raises(ConfigError, match="the global batch of 128 can be shared, or global_batch rescale"):
        api._other_ranks(before, 3, "keep")
    with pytest.raises(ConfigError, match="global_batch is 'half', but allowed is: keep or rescale"):
        api._other_ranks(before, 3, "half")
    with pytest.raises(ConfigError, match="nproc_per_node is 0"):
        api._other_ranks(before, 0, "keep")


def test_what_is_noted_is_plain_json_beside_the_configuration(
    catalogue: Catalogue,  # noqa: F811
    start: Callable[[plan.Plan], RunDirectory],
) -> None:
    run = start(planned(catalogue))
    assert rundir.open_run(run.path.parent, run.run_id).read_config().model == "cnn"
    noted = json.loads((run.path / "data.json").read_text())
    assert noted["dataset"]["num_train"] == 8000 and noted["counts"] == {"cnn": {"small": 7, "large": 70}}
