"""`/start_run` with only a data set and a model, for every pair of the catalogue; nothing is trained."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_gui.auth.rights import DataAccess
from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import recipe
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource, default_cache_file
from ddp_gui.plan.plan import Plan
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore
from ddp_gui.train.api import Api
from trainers.contract import config, rundir
from trainers.contract.catalogue import Dataset
from trainers.contract.status import Status

MACHINES = {
    "two cores": Machine(num_gpus=0, num_cores=2),
    "eight GPUs": Machine(num_gpus=8, num_cores=64, gpu_names=("H200",) * 8),
}
# Data sets from packages that may not be installed here, with the sizes that they have if installed.
PACKAGED = {
    "mnist": ("image_classification", 4_000, 10),
    "names": ("text_classification", 8_400, 14),
    "rotten_tomatoes": ("text_classification", 10_300, 2),
}


def packaged(name: str) -> Dataset:
    """Return a data set as it appears if its package is installed."""
    task, num_train, num_classes = PACKAGED[name]
    return Dataset(
        name=name,
        label="",
        description="",
        source="",
        task=task,
        num_train=num_train,
        num_validation=num_train // 4,
        num_classes=num_classes,
        sample_unit="samples",
    )


def catalogue() -> Catalogue:
    """Return the catalogue of this checkout with the data sets of all packages."""
    found = CatalogueSource(default_cache_file()).get()
    return replace(found, datasets={name: packaged(name) for name in PACKAGED} | dict(found.datasets))


CATALOGUE = catalogue()
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

    def refuse_for_engine(self, _planned: Plan) -> None:
        """Accept every plan, as the engine of this machine does."""

    def start(self, planned: Plan, owner: str, *, uses_occupied_gpus: bool) -> Any:
        assert not uses_occupied_gpus, owner
        self.started.append(planned)
        return SimpleNamespace(run=SimpleNamespace(run_id="made"), place=None)


def store_of(folder: Path) -> RunStore:
    """Return the runs of a folder, with the catalogue of these tests."""
    return RunStore(folder, cast("CatalogueSource", SimpleNamespace(get=lambda: CATALOGUE)))


def start(machine: Machine, folder: Path, raw: dict[str, Any]) -> Plan:
    """Call the endpoint and return the plan that the scheduler received."""
    line = Line(machine)
    api = Api(store_of(folder), cast("Scheduler", line), cast("QueuePresenter", None), DataAccess(folder))
    api._answer_placed = lambda *_: {}  # type: ignore[method-assign, assignment]
    asyncio.run(api.start_run(raw))
    (planned,) = line.started
    return cast("Plan", planned)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("dataset", "model"), PAIRS)
def test_a_data_set_and_a_model_are_a_whole_configuration(
    dataset: str, model: str, machine: str, tmp_path: Path
) -> None:
    planned = start(MACHINES[machine], tmp_path, {"dataset": dataset, "model": model})
    is_small = planned.global_batch * recipe.STEPS_PER_EPOCH <= planned.num_train
    assert is_small or planned.config.batch_size == 1
    rule = recipe.rule_for(CATALOGUE.datasets[dataset], CATALOGUE.models[model].family)
    assert planned.num_steps >= rule.least_steps
    assert planned.config.learning_rate == rule.learning_rate


def test_the_catalogue_has_every_kind_of_data() -> None:
    tasks = {CATALOGUE.datasets[dataset].task for dataset, _ in PAIRS}
    assert len(tasks) == 5 and len(PAIRS) >= 36


def test_what_is_given_and_too_large_is_still_refused(tmp_path: Path) -> None:
    raw = {"dataset": "iris", "model": "linear", "batch_size": 121}
    with pytest.raises(ValueError, match="batch_size is 121; allowed:"):
        start(MACHINES["two cores"], tmp_path, raw)


def test_a_stop_while_the_run_starts_promises_no_checkpoint(tmp_path: Path) -> None:
    run, nothing = rundir.create(tmp_path, config.parse({})), cast("Any", None)
    run.write_status(Status(state="starting"))
    lock = run.acquire_lock()  # as the supervisor of a live run
    try:
        answer = Api(RunStore(tmp_path, nothing), nothing, nothing, DataAccess(tmp_path)).stop_run(run.run_id)
    finally:
        os.close(lock)
    assert answer["message"] == "Stopping." and answer["command_id"] is not None
