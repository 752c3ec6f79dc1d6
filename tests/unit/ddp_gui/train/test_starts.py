"""`/start_run` with `start_from`: the model is taken over, and only runs that the user can see are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile, Person
from ddp_gui.train import fill_in
from tests.unit.ddp_gui.train.test_start_run import MACHINES, start, store_of
from tests.unit.trained_runs import leave_trained_run
from trainers.contract import rundir
from trainers.contract.config import ConfigError
from trainers.contract.rundir import RunDirectory

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
        ({"start_from": "run"}, "a run and the step of its checkpoint"),
        ({"dataset": "iris"}, "a model for iris"),
    ],
)
def test_what_differs_from_the_checkpoint_is_refused(
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
    with rights.asked_by(Person(name="ann", role="student")), refused:
        start(MACHINE, tmp_path, raw)
    with rights.asked_by(Person(name="bob", role="student")):
        start(MACHINE, tmp_path, raw)


def test_a_new_run_with_the_name_of_a_deleted_source_is_not_the_source(
    source: RunDirectory, tmp_path: Path
) -> None:
    planned = start(MACHINE, tmp_path, {"dataset": "digits", "start_from": f"{source.run_id}/1"})
    run = rundir.create(tmp_path, planned.config, planned.note)
    store, asked = store_of(tmp_path), {"from": run.run_id}
    assert store.has_source(run, source.run_id)
    assert fill_in.config_of_run(store, asked)["start_from"] == f"{source.run_id}/1"
    shutil.rmtree(source.path)
    assert not store.has_source(run, source.run_id)
    other, *_ = leave_trained_run(tmp_path, "digits", "cnn", model_size="large", seed=7)
    other.path.rename(source.path)
    assert not store.has_source(run, source.run_id)
    with pytest.raises(ValueError, match=f"started from a checkpoint of {source.run_id}, which was deleted"):
        fill_in.config_of_run(store, asked)
