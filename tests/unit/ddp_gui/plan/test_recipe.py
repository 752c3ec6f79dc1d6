"""Tests of the rules for default values: every data set and model, any number of ranks, measured values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import plan, recipe
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource, default_cache_file
from ddp_gui.plan.plan import Plan
from ddp_gui.train import choices
from trainers.contract import config as config_module
from trainers.contract.catalogue import Dataset

LAPTOP = Machine(num_gpus=0, num_cores=2)
BOX = Machine(num_gpus=8, num_cores=64, gpu_names=("H200",) * 8)


@pytest.fixture(scope="module")
def real() -> Catalogue:
    """Return the catalogue of this checkout."""
    return CatalogueSource(default_cache_file()).get()


def completed(catalogue: Catalogue, machine: Machine = LAPTOP, **raw: Any) -> Plan:
    """Return the plan of a configuration whose missing values are filled in by the rules."""
    config = recipe.complete(plan.parse(raw, machine), catalogue, raw)
    return plan.make(config, catalogue, machine)


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
def test_every_pair_of_the_catalogue_has_small_batches_and_many_steps(
    real: Catalogue, num_ranks: int
) -> None:
    for dataset in real.datasets:
        for model in real.models_for(dataset):
            if model.may_have_path:
                continue
            planned = completed(real, BOX, dataset=dataset, model=model.name, nproc_per_node=num_ranks)
            case = (dataset, model.name, planned.config.batch_size)
            assert planned.global_batch * 20 <= planned.num_train or planned.config.batch_size == 1, case
            assert planned.num_steps >= 300, case
            assert planned.config.lr_schedule == "cosine", case


@pytest.mark.parametrize("num_rows", [1, 7, 60, 1_000, 10_000_000])
def test_rules_hold_for_own_data_of_any_size(real: Catalogue, num_rows: int) -> None:
    own = Dataset(
        name="own",
        label="",
        description="",
        source="",
        task="tabular_classification",
        num_train=num_rows,
        num_validation=1,
        num_classes=2,
        sample_unit="rows",
    )
    catalogue = replace(real, datasets={**real.datasets, "own": own})
    planned = completed(catalogue, dataset="own", model="tabular_mlp", nproc_per_node=1)
    assert 1 <= planned.config.batch_size <= max(1, num_rows // 20)
    assert planned.num_steps >= 400
    assert planned.num_steps <= max(3000 + planned.steps_per_epoch, planned.steps_per_epoch)


@pytest.mark.parametrize(
    ("num_classes", "model", "num_epochs"), [(2, "bert", 8), (14, "bert", 16), (14, "gru", 8)]
)
def test_attention_learns_many_classes_of_text_longer(
    real: Catalogue, num_classes: int, model: str, num_epochs: int
) -> None:
    texts = replace(real.datasets["austen_novels"], num_train=4_000, num_classes=num_classes)
    catalogue = replace(real, datasets={"texts": texts})
    assert completed(catalogue, dataset="texts", model=model).config.num_epochs == num_epochs


def test_a_data_set_and_a_model_alone_can_be_started(real: Catalogue) -> None:
    planned = completed(real, dataset="iris", model="linear")
    assert planned.global_batch == 4 and planned.num_steps >= 1000


def test_what_a_user_gives_stays_and_the_rest_follows_it(real: Catalogue) -> None:
    given = {"dataset": "iris", "model": "linear", "batch_size": 30, "learning_rate": 0.5}
    planned = completed(real, **given)
    assert (planned.config.batch_size, planned.config.learning_rate) == (30, 0.5)
    assert planned.num_steps >= 1000, "more epochs, because the batch is larger"
    sgd = completed(real, dataset="iris", model="linear", optimizer="sgd").config
    assert sgd.learning_rate == 10 * completed(real, dataset="iris", model="linear").config.learning_rate
    assert completed(real, dataset="digits", model="mlp", max_steps=7).num_steps == 7
    assert completed(real, dataset="digits", model="mlp", max_steps=9_999).num_steps == 9_999


def test_a_run_of_few_epochs_evaluates_and_saves_four_times(real: Catalogue) -> None:
    def every(**raw: Any) -> set[int | None]:
        config = completed(real, **raw).config
        return {config.eval_every_steps, config.checkpoint_every_steps}

    assert every(dataset="austen", model="gpt", nproc_per_node=2) == {119}  # of 476
    assert every(dataset="austen", model="gpt", num_epochs=1) == {None}, "as the user asked: each epoch"
    assert every(dataset="austen", model="gpt", max_steps=100) == {None}
    assert every(dataset="iris", model="linear") == {None}


def test_adapters_learn_faster_than_whole_pretrained_models(real: Catalogue) -> None:
    def rate(model: str, lora_rank: int) -> float:
        config, data = config_module.parse({"lora_rank": lora_rank}), real.datasets["austen_novels"]
        return float(recipe.values(config, data, real.models[model], 2, {})["learning_rate"])

    assert rate("hf_text", 4) == pytest.approx(30 * rate("hf_text", 0))
    assert rate("bert", 4) == rate("bert", 0)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Catalogue) -> None:
    """Provide measured values for one pair."""
    config = completed(real, dataset="iris", model="linear").config
    row = {
        "dataset": "iris",
        "model": "linear",
        "metric": "accuracy",
        "mean": 0.9667,
        "seconds": 23.0,
        "num_ranks": 2,
        "values": {name: getattr(config, name) for name in recipe.FIELDS},
    }
    (tmp_path / "recipes.json").write_text(json.dumps({"rows": [row]}))
    monkeypatch.setattr(recipe, "MEASURED", tmp_path / "recipes.json")
    recipe._measured.cache_clear()
    yield
    recipe._measured.cache_clear()


@pytest.mark.usefixtures("measured")
def test_what_was_measured_is_stated_for_these_values_only(real: Catalogue) -> None:
    as_measured = completed(real, dataset="iris", model="linear", seed=3, name="mine")
    assert "accuracy of about <b>0.97</b> in about 20 s" in choices.expectation(as_measured)
    for other in (
        {"learning_rate": 1},
        {"optimizer": "sgd"},
        {"nproc_per_node": 1},
        {"model": "tabular_mlp"},
    ):
        planned = completed(real, **{"dataset": "iris", "model": "linear", **other})
        said = choices.expectation(planned)
        assert f"{planned.num_steps:,}" in said and "about" not in said
