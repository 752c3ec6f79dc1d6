"""Starting from another run's checkpoint: weights, scale and refusals, without training."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.trained_runs import CPU, leave_trained_run
from trainers import build, registry
from trainers.checkpoint.start_from_run import InheritedWeights, InheritedWeightsError
from trainers.contract import config as config_module
from trainers.contract import rundir, start_from
from trainers.contract.manifests import DamageError
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataOptions, DataSpec
from trainers.data.own.splits import MappedRowsSplit
from trainers.registry import ModelOptions


def start_of(run: RunDirectory) -> InheritedWeights:
    return InheritedWeights(run.list_checkpoints()[-1], run.run_id)


def built(name: str) -> Any:
    return lambda spec: build.build_network(registry.models()[name], spec, ModelOptions())


def test_the_head_is_replaced_for_classes_of_another_number_or_other_names(tmp_path: Path) -> None:
    run, network, spec = leave_trained_run(tmp_path, "digits", "mlp")
    start = start_of(run)
    head = ["5.weight", "5.bias"]
    before = torch.get_rng_state()
    assert start.find_replaced(spec, built("mlp")) == []
    other = replace(spec, class_names=tuple("abcdefghij"))
    assert start.find_replaced(other, built("mlp")) == head
    assert start.find_replaced(replace(spec, num_classes=3, class_names=tuple("abc")), built("mlp")) == head
    assert torch.equal(before, torch.get_rng_state()), "the weights of the run do not depend on it"
    new = built("mlp")(other)
    kept = new.state_dict()["5.weight"].clone()
    start.load(new, other, head)
    assert torch.equal(new.state_dict()["1.weight"], network.state_dict()["1.weight"])
    assert torch.equal(new.state_dict()["5.weight"], kept)


def test_a_table_keeps_the_scale_of_the_checkpoint_in_memory_and_on_disk(tmp_path: Path) -> None:
    run, _, _ = leave_trained_run(tmp_path, "moons", "tabular_mlp")
    start = start_of(run)
    inputs = start.description["input"]
    split = registry.datasets()["spirals"].create(DataOptions()).load(CPU)[0]
    raw = split.inputs * split.feature_std + split.feature_mean
    wanted = (raw - torch.tensor(inputs["mean"])) / torch.tensor(inputs["std"])
    standardised, before = split.inputs.numpy(), split.preparation()
    start.use_scale(split)
    assert torch.allclose(split.batch(torch.arange(5))[0], wanted[:5], atol=1e-5)
    assert split.preparation() == {name: pytest.approx(inputs[name]) for name in ("mean", "std")}

    class Stored:
        def take(self, rows: Any) -> Any:
            return standardised[rows]

    targets, rows = np.zeros(5), np.arange(5)
    unscaled = {"mean": [0.0, 0.0], "std": [1.0, 1.0]}
    for mapped in (
        MappedRowsSplit(Stored(), targets, rows, stored=before, preparation=before),  # type: ignore[arg-type]
        MappedRowsSplit(Stored(), targets, rows, stored=before, preparation=unscaled),  # type: ignore[arg-type]
    ):
        start.use_scale(mapped)
        assert torch.allclose(mapped.batch(torch.arange(5))[0], wanted[:5], atol=1e-5)


def test_a_regression_answers_the_same_in_the_scale_of_other_targets(tmp_path: Path) -> None:
    run, network, spec = leave_trained_run(tmp_path, "diabetes", "tabular_mlp")
    rows = torch.randn(5, *spec.input_shape)
    other = replace(spec, target_mean=spec.target_mean + 7.0, target_std=spec.target_std * 3)
    for now in (spec, other):
        new = built("tabular_mlp")(now).eval()
        start_of(run).load(new, now, [])
        answers = new(rows) * now.target_std + now.target_mean
        torch.testing.assert_close(answers, network.eval()(rows) * spec.target_std + spec.target_mean)
    assert spec.target_std > 1


def test_another_task_or_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    run, _, spec = leave_trained_run(tmp_path, "iris", "linear")
    start = start_of(run)
    assert start.spec(spec) == spec
    with pytest.raises(InheritedWeightsError, match="the task of the data is tabular_regression"):
        start.spec(replace(spec, task="tabular_regression"))
    names = (*spec.feature_names[:-1], "weight")
    with pytest.raises(
        InheritedWeightsError, match="column 4 of the table is 'weight', but the checkpoint's is 'petal"
    ):
        start.spec(replace(spec, feature_names=names))


def test_weights_are_linked_or_copied_and_damaged_ones_leave_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: RunDirectory = leave_trained_run(tmp_path, "digits", "linear")[0]
    settings = config_module.parse(
        {"dataset": "digits", "model": "linear", "start_from": f"{source.run_id}/1"}
    )
    run, item = start_from.find(tmp_path, settings.start_from)
    made = rundir.create(tmp_path, settings, lambda each: start_from.copy(run, item, each))
    origin = start_from.read_origin(made)
    assert origin is not None and (origin.run_id, origin.step) == (source.run_id, 1)
    start = InheritedWeights.of_run(made, settings)
    assert start is not None and start.description["task"] == "image_classification"
    weights = item.path / "model.safetensors"
    assert (made.path / "start" / weights.name).samefile(weights)  # a link: no time, no space

    def cannot_link(*_: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, "no links in this file system")

    with monkeypatch.context() as patch:
        patch.setattr("os.link", cannot_link)
        copied = rundir.create(tmp_path, settings, lambda each: start_from.copy(run, item, each))
    copy = copied.path / "start" / weights.name
    assert not copy.samefile(weights) and copy.read_bytes() == weights.read_bytes()
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DamageError, match=r"model\.safetensors of step 1 differs from the saved file"):
        rundir.create(tmp_path, settings, lambda each: start_from.copy(run, item, each))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_run_written_by_hand_must_have_the_model_of_its_start(tmp_path: Path) -> None:
    source: RunDirectory = leave_trained_run(tmp_path, "digits", "linear")[0]
    settings = config_module.parse({"model": "linear", "start_from": f"{source.run_id}/1"})
    run, item = start_from.find(tmp_path, settings.start_from)
    made = rundir.create(tmp_path, settings, lambda each: start_from.copy(run, item, each))
    with pytest.raises(InheritedWeightsError, match=r"model is 'cnn', but .*/1 was trained with 'linear'"):
        InheritedWeights.of_run(made, replace(settings, model="cnn"))
    tuned = made.path / start_from.FOLDER / "model.json"
    about = json.loads(tuned.read_text())
    tuned.write_text(json.dumps(about | {"model": about["model"] | {"lora_rank": 4}}))
    with pytest.raises(InheritedWeightsError, match=r"lora_rank is 0, but .*/1 was trained with 4"):
        InheritedWeights.of_run(made, settings)


def test_what_cannot_be_started_from_is_refused(tmp_path: Path) -> None:
    spec: DataSpec
    run, _, spec = leave_trained_run(tmp_path, "digits", "linear", mistake="no_sampler")
    assert spec.num_classes == 10
    with pytest.raises(ValueError, match="was broken on purpose"):
        start_from.find(tmp_path, f"{run.run_id}/1")
    with pytest.raises(ValueError, match="there is no run of this id"):
        start_from.find(tmp_path, "other/1")
    for text in ("run", "../run/1", "run/x", "a/b/1", "-run/1", "a\nb/1"):
        with pytest.raises(ValueError, match="a run and the step of its checkpoint"):
            config_module.parse({"start_from": text})
