"""`/start_run` and `/resume_run` up to the scheduler; nothing is trained."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile, DataAccess, Person
from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import recipe
from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
from ddp_gui.plan.plan import Plan
from ddp_gui.queue.scheduler import StartResult
from ddp_gui.runs.runs import RunStore
from ddp_gui.train import fill_in
from ddp_gui.train.api import Api
from tests.unit.trained_runs import leave_trained_run
from trainers.contract import checkpoint_files, config, rundir
from trainers.contract.checkpoint_files import Sealing
from trainers.contract.config import ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status

MACHINES = {
    "two cores": Machine(num_gpus=0, num_cores=2),
    "eight GPUs": Machine(num_gpus=8, num_cores=64, gpu_names=("H200",) * 8),
}


CATALOGUE = CatalogueSource(default_cache_file()).get()
PAIRS = [
    (dataset, model.name)
    for dataset in sorted(CATALOGUE.datasets)
    for model in CATALOGUE.models_for(dataset)
    if not model.may_have_path
]


class Line(SimpleNamespace):
    """A scheduler that records the plans that it receives."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(started=[])
        self._machine = machine

    def capacity(self, _config: Any) -> Machine:
        return self._machine

    def check_engine_support(self, _planned: Plan) -> None:
        """Accept every plan, as the engine of this machine does."""

    def start(self, planned: Plan, owner: str, *, uses_occupied_gpus: bool) -> Any:
        assert not uses_occupied_gpus, owner
        self.started.append(planned)
        return SimpleNamespace(run=SimpleNamespace(run_id="made"), place=None)


def store_of(folder: Path) -> RunStore:
    """Return the runs of a folder, with the catalogue of these tests."""
    return RunStore(folder, SimpleNamespace(get=lambda: CATALOGUE))


def start(machine: Machine, folder: Path, raw: dict[str, Any]) -> Plan:
    """Call the endpoint and return the plan that the scheduler received."""
    line = Line(machine)
    api = Api(store_of(folder), line, None, DataAccess(folder))
    api._placed_result = lambda *_: {}
    asyncio.run(api.start_run(raw))
    (planned,) = line.started
    return planned


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("dataset", "model"), PAIRS)
def test_a_data_set_and_a_model_are_enough(dataset: str, model: str, machine: str, tmp_path: Path) -> None:
    planned = start(MACHINES[machine], tmp_path, {"dataset": dataset, "model": model})
    is_small = planned.global_batch * recipe.STEPS_PER_EPOCH <= planned.num_train
    assert is_small or planned.config.batch_size == 1
    assert planned.config.lr_schedule == "cosine"
    rule = recipe.rule_for(CATALOGUE.datasets[dataset], CATALOGUE.models[model].family)
    assert planned.num_steps >= rule.min_steps
    assert planned.config.learning_rate == rule.learning_rate


def test_what_is_given_and_too_large_is_still_refused(tmp_path: Path) -> None:
    assert len({CATALOGUE.datasets[dataset].task for dataset, _ in PAIRS}) == 5
    raw = {"dataset": "iris", "model": "linear", "batch_size": 121}
    with pytest.raises(ValueError, match="batch_size is 121; allowed:"):
        start(MACHINES["two cores"], tmp_path, raw)


def test_a_stop_while_the_run_starts_promises_no_checkpoint(tmp_path: Path) -> None:
    run, nothing = rundir.create(tmp_path, config.parse({})), None
    run.write_status(Status(state="starting"))
    lock = run.acquire_lock()  # as the supervisor of a live run
    try:
        answer = Api(RunStore(tmp_path, nothing), nothing, nothing, DataAccess(tmp_path)).stop_run(run.run_id)
    finally:
        os.close(lock)
    assert answer["message"] == "Stopping." and answer["command_id"] is not None


MACHINE = MACHINES["two cores"]


@pytest.fixture
def source(tmp_path: Path) -> RunDirectory:
    return leave_trained_run(tmp_path, "digits", "cnn", model_size="large")[0]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"model": "vit"}, "model is 'vit'; allowed: cnn, as in"),
        ({"model_size": "small"}, "model_size is 'small'; allowed: large, as in"),
        ({"lora_rank": "4"}, "lora_rank is '4'; allowed: 0, as in"),
        ({"start_from": "gone/1"}, "there is no run of this id"),
        ({"start_from": "{run}/2"}, "has no checkpoint of step 2; its checkpoints: 1"),
        ({"dataset": "iris"}, "a model for iris"),
    ],
)
def test_other_models_are_refused(
    source: RunDirectory, tmp_path: Path, raw: dict[str, str], words: str
) -> None:
    values = {"dataset": "digits", "start_from": "{run}/1"} | raw
    with pytest.raises(ConfigError, match=words):
        start(MACHINE, tmp_path, {name: each.format(run=source.run_id) for name, each in values.items()})


def test_a_run_of_another_user_that_is_hidden_is_not_found(source: RunDirectory, tmp_path: Path) -> None:
    rights.note_owner(source, "bob")
    ClassSettingsFile(tmp_path).change(everyone_sees=False)
    raw = {"dataset": "digits", "start_from": f"{source.run_id}/1"}
    refused = pytest.raises(ConfigError, match="a checkpoint of a run that you can see")
    with rights.acting_as(Person(name="ann", role="student")), refused:
        start(MACHINE, tmp_path, raw)
    with rights.acting_as(Person(name="bob", role="student")):
        start(MACHINE, tmp_path, raw)


def test_a_new_run_with_a_deleted_source_s_name_differs(source: RunDirectory, tmp_path: Path) -> None:
    planned = start(MACHINE, tmp_path, {"dataset": "digits", "start_from": f"{source.run_id}/1"})
    run = rundir.create(tmp_path, planned.config, planned.note)
    store, asked = store_of(tmp_path), {"from": run.run_id}
    assert store.has_source(run, source.run_id)
    assert fill_in.read_run_config(store, asked)["start_from"] == f"{source.run_id}/1"
    shutil.rmtree(source.path)
    assert not store.has_source(run, source.run_id)
    other, *_ = leave_trained_run(tmp_path, "digits", "cnn", model_size="large", seed=7)
    other.path.rename(source.path)
    assert not store.has_source(run, source.run_id)
    with pytest.raises(ValueError, match=f"started from a checkpoint of {source.run_id}, which was deleted"):
        fill_in.read_run_config(store, asked)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    raw = {"model": "script", "dataset": "script", "script": "a.py", "nproc_per_node": 2}
    run = rundir.create(tmp_path, config.parse(raw))
    run.write_status(Status(state="stopped"))
    return run


def save(run: RunDirectory, step: int) -> None:
    """Make a checkpoint that can be listed."""
    aside = checkpoint_files.partial_path(run, step)
    aside.mkdir()
    (aside / "script.pt").write_bytes(b"values")
    with Sealing() as sealing:
        about = {"strategy": "script", "world_size": 2, "reason": "button"}
        checkpoint_files.publish(run, step, about, sealing.finish(aside))


def test_a_script_is_resumed_from_its_checkpoint_as_it_was_started(run: RunDirectory) -> None:
    resumed: list[Any] = []

    def resume(run: RunDirectory, step: int, plan: Any, owner: str) -> StartResult:
        resumed.append((step, plan, owner))
        return StartResult(run=run, ticket=None, snapshot=None)

    line, nothing = SimpleNamespace(resume=resume), SimpleNamespace()
    access = DataAccess(run.path.parent)
    api = Api(RunStore(run.path.parent, nothing), line, nothing, access, plan_script=lambda _run: "a plan")
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        asyncio.run(api.resume_run(run.run_id))
    save(run, 7)
    assert asyncio.run(api.resume_run(run.run_id, 7, 2))["message"] == "Continuing from step 7."
    assert resumed == [(7, "a plan", "")]
    with pytest.raises(ConfigError, match="nproc_per_node is 3; allowed: null"):
        asyncio.run(api.resume_run(run.run_id, None, 3))
    with pytest.raises(ConfigError, match="more_epochs is 5; allowed: null"):
        asyncio.run(api.train_more(run.run_id, 5))
    assert len(resumed) == 1, "a refusal starts nothing"
