"""Tests of the form: warnings before the start, presets, and filling it in from a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import recipe
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource, default_cache_file
from ddp_gui.plan.memory import warnings_before_start
from ddp_gui.plan.plan import make, parse
from ddp_gui.runs.runs import RunStore
from ddp_gui.train import fill_in
from ddp_gui.train import form as form_module
from ddp_gui.train.form import Form
from trainers.contract import config, rundir

LAPTOP = Machine(num_gpus=0, num_cores=2)


@pytest.fixture(scope="module")
def real() -> Catalogue:
    """Return the catalogue of this checkout."""
    return CatalogueSource(default_cache_file()).get()


def said(catalogue: Catalogue, **values: Any) -> str:
    raw = {"dataset": "digits", "model": "mlp", "batch_size": 16, **values}
    return " ".join(warnings_before_start(make(parse(raw, LAPTOP), catalogue, LAPTOP), LAPTOP))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learning_rate": 8}, "A rate of 8 is 800 times the highest that usually works with adamw"),
        ({"learning_rate": 1e-9}, "the model will hardly learn"),
        ({"learning_rate": 0.02, "scale_lr": True}, "A rate of 0.04 is 4 times"),
        ({"nproc_per_node": 4}, "4 ranks share 2 CPU cores"),
        ({"batch_size": 700, "num_epochs": 2}, "Only 2 steps per epoch, 4 in all"),
        ({"checkpoint_every_steps": 1}, "A checkpoint every step keeps the disk busy"),
        ({"warmup_ratio": 0.8}, "the run reaches the full learning rate late or never"),
        ({"num_workers": 8}, "16 loader workers in all share 2 CPU cores"),
        ({"sync_batchnorm": True}, "SyncBatchNorm has no effect on the CPU"),
    ],
)
def test_what_will_disappoint_is_said(real: Catalogue, values: dict[str, Any], words: str) -> None:
    assert words in said(real, **values)


@pytest.mark.parametrize("preset", form_module.PRESETS, ids=lambda preset: preset.name)
def test_every_preset_can_be_started_here_without_a_warning(
    real: Catalogue, preset: form_module.Preset
) -> None:
    planned = make(parse(preset.values, LAPTOP), real, LAPTOP)
    assert warnings_before_start(planned, LAPTOP) == []


@pytest.fixture
def form(real: Catalogue) -> Form:
    made = Form(real, LAPTOP)
    with gr.Blocks():
        made.add_controls(*config.settings())
    return made


def values_of(form: Form, changes: list[dict[str, Any]]) -> dict[str, Any]:
    return form.to_raw(*(change["value"] for change in changes))


def test_the_form_is_filled_in_as_a_run_was_with_what_the_address_changes(form: Form, tmp_path: Path) -> None:
    was = config.parse({"dataset": "iris", "model": "tabular_mlp", "max_grad_norm": 0.5, "name": "mine"})
    run = rundir.create(tmp_path, was)
    store = RunStore(tmp_path, None)  # type: ignore[arg-type]
    query = {"from": run.run_id, "learning_rate": "0.01", "scale_lr": "true", "__theme": "dark"}
    values = fill_in.config_of_run(store, query)
    filled = config.parse(values_of(form, fill_in.updates(form, values)))
    expected = {**was.to_json(), "learning_rate": 0.01, "scale_lr": True}
    assert filled == config.parse(expected)


@pytest.mark.parametrize("query", [{"from": "../../etc"}, {"from": "none-1"}, {}])
def test_an_address_without_a_run_is_refused(tmp_path: Path, query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="run_id"):
        fill_in.config_of_run(RunStore(tmp_path, None), query)  # type: ignore[arg-type]


def test_other_data_than_a_presets_takes_its_other_fields_back(form: Form) -> None:
    opened = form.usual_values()
    taken_back = fill_in.without_preset(form, opened | {"dataset": "iris"})
    assert taken_back == {name: config.default_values()[name] for name in taken_back}
    assert set(taken_back) == {"num_epochs", "random_crop", "weight_decay"} <= set(form_module.FITTED_FIELDS)
    assert fill_in.without_preset(form, opened) == {}, "the data is the preset's own"
    assert fill_in.without_preset(form, opened | {"dataset": "iris", "num_epochs": 7}) == {}, "a person's own"
    moons = form.unset_values() | dict(form_module.find_preset("moons").values)
    assert fill_in.without_preset(form, moons | {"dataset": "wine"})["learning_rate"] == 0.002


def test_the_number_of_gpus_is_that_of_the_free_ones_each_time_the_form_is_opened(real: Catalogue) -> None:
    box = Machine(num_gpus=8, num_cores=64)
    made = Form(real, box)
    assert made.usual_values()["nproc_per_node"] == 8
    now = made.refresh_ranks(replace(box, num_gpus_of_others=1, num_gpus_of_runs=2))
    assert now == {
        "value": 5,
        "label": "GPUs (up to 8)",
        "info": "One process trains on each GPU. 8 GPUs, 1 in use by another program, 2 in use by runs or "
        "checks of this page.",
    }
    assert made.usual_values()["nproc_per_node"] == made.unset_values()["nproc_per_node"] == 5
    assert made.refresh_ranks(box)["info"] == "One process trains on each GPU."


def rules_of(catalogue: Catalogue) -> fill_in.Rules:
    """Return the equivalent of `Api.recipe` on this laptop."""

    def rules(raw: dict[str, Any]) -> dict[str, Any]:
        try:
            completed = recipe.complete(parse(raw, LAPTOP), catalogue, raw)
        except config.ConfigError:
            return {}
        return {name: getattr(completed, name) for name in recipe.FIELDS if name not in raw}

    return rules


def test_another_data_set_brings_the_rules_values_and_a_third_one_its_own(
    real: Catalogue, form: Form
) -> None:
    rules = rules_of(real)
    raw = form.usual_values() | {"dataset": "iris", "model": "linear"}
    found, filled = fill_in.by_rules(form, rules, "", raw, leaves_preset=True)
    assert {name: found[name] for name in recipe.FIELDS} == rules({"dataset": "iris", "model": "linear"})
    assert found["random_crop"] == 0, "the preset's other fields go back"
    now = raw | found | {"dataset": "moons"}
    found, filled = fill_in.by_rules(form, rules, filled, now, leaves_preset=True)
    assert {name: found[name] for name in recipe.FIELDS} == rules({"dataset": "moons", "model": "linear"})
    now |= found | {"nproc_per_node": 4}
    found, _ = fill_in.by_rules(form, rules, filled, now, leaves_preset=False)
    assert found["batch_size"] == 16, "2,000 rows in 20 steps of 4 ranks"


def test_what_a_person_has_changed_stays_and_the_rules_count_with_it(real: Catalogue, form: Form) -> None:
    rules = rules_of(real)
    raw = form.usual_values() | {"dataset": "iris", "model": "linear"}
    found, filled = fill_in.by_rules(form, rules, "", raw, leaves_preset=True)
    # A text control returns a text.
    now = raw | found | {"dataset": "wine", "batch_size": 30, "learning_rate": "0.0100"}
    found, filled = fill_in.by_rules(form, rules, filled, now, leaves_preset=True)
    assert "batch_size" not in found and found["num_epochs"] == 334, "1,000 steps of 60 of 142 rows"
    assert found["learning_rate"] == 0.01, "0.0100 is what was filled in"
    assert "batch_size" not in json.loads(filled)


def test_other_ranks_leave_a_preset_and_a_run_as_they_are(real: Catalogue, form: Form) -> None:
    rules = rules_of(real)
    opened = form.usual_values() | {"nproc_per_node": 1}
    assert fill_in.by_rules(form, rules, "", opened, leaves_preset=False) == ({}, "")
    run = opened | {"dataset": "iris", "model": "linear", "batch_size": 9, "learning_rate": 0.3}
    filled = fill_in.filled_by_rules(form, rules, run)
    found, _ = fill_in.by_rules(form, rules, filled, run | {"nproc_per_node": 2}, leaves_preset=False)
    assert found.keys().isdisjoint({"batch_size", "learning_rate"})


def test_values_of_the_rules_are_defaults_and_no_changes(real: Catalogue, form: Form) -> None:
    rules = rules_of(real)
    opened = form.usual_values()
    assert fill_in.defaults_for(form, rules, opened) == opened
    raw = opened | {"dataset": "iris", "model": "linear"}
    filled = raw | fill_in.by_rules(form, rules, "", raw, leaves_preset=True)[0]
    found = fill_in.list_changes(form, real, fill_in.defaults_for(form, rules, filled), filled)
    assert [change.name for change in found] == ["model", "dataset"]
