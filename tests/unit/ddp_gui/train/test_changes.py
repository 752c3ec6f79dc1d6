"""Tests of the form's text on changed fields, and of the selected preset."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.train import fill_in
from ddp_gui.train import form as form_module
from ddp_gui.train.form import TOPIC_TITLES, Form
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract import config, rundir


@pytest.fixture
def form(catalogue: Catalogue) -> Form:  # noqa: F811
    made = Form(catalogue, Machine(num_gpus=0, num_cores=2))
    with gr.Blocks():
        made.add_controls("dataset", "model", "nproc_per_node", "batch_size", "learning_rate", "num_epochs")
        for topic in TOPIC_TITLES:
            made.add_controls(*made.fields_of_topic(topic))
    return made


def said(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
    values: dict[str, Any],
    **more: Any,
) -> tuple[str, str, dict[str, int]]:
    """Return the text without tags, the selected preset, and the number of changes by topic."""
    line = fill_in.changes_html(form, catalogue, form.usual_values() | values, **{"filled_from": None} | more)
    preset = re.findall(r'data-preset="(.*?)"', line)[0]
    topics = json.loads(unescape(re.findall(r'data-topics="(.*?)"', line)[0]))
    return unescape(re.sub("<.*?>", "", line)), preset, topics


def test_nothing_is_said_of_the_defaults_which_are_the_first_preset(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
) -> None:
    assert said(form, catalogue, {}) == ("", form_module.PRESETS[0].name, {})


@pytest.mark.parametrize("preset", form_module.PRESETS[1:], ids=lambda preset: preset.name)
def test_a_preset_is_chosen_until_a_value_differs(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
    preset: form_module.Preset,
) -> None:
    filled = form.unset_values() | dict(preset.values)
    words, chosen, _ = said(form, catalogue, filled)
    assert chosen == preset.name
    assert words.startswith("Changed from the defaults: ")
    assert said(form, catalogue, filled | {"seed": 77})[1] == ""


def test_each_change_is_told_and_counted_once_as_people_typed_it(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
) -> None:
    words, _, topics = said(form, catalogue, {"learning_rate": "0.002", "max_steps": "50", "scale_lr": True})
    assert "Learning rate" not in words, "0.002 is the default, whether typed or not"
    assert "Stop after steps empty → 50" in words and "off → on" in words
    assert topics == {"schedule": 1, "optimizer": 1}


def test_a_field_that_means_nothing_is_no_change(form: Form, catalogue: Catalogue) -> None:  # noqa: F811
    assert said(form, catalogue, {"optimizer": "sgd", "momentum": "0.5"})[2] == {"optimizer": 2}
    assert said(form, catalogue, {"optimizer": "adam", "momentum": "0.5"})[2] in ({}, {"optimizer": 1})
    assert "Momentum" not in said(form, catalogue, {"optimizer": "adam", "momentum": "0.5"})[0]


def test_a_form_filled_in_from_a_run_says_what_differs_from_it(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
) -> None:
    run = ("the <b>first</b>", form.usual_values() | {"num_epochs": 3})
    words, _, _ = said(form, catalogue, {"num_epochs": 3, "batch_size": 32}, filled_from=run)
    assert words == "As the <b>first</b>, but: Batch per rank 64 → 32"
    words, _, _ = said(form, catalogue, {"num_epochs": 3}, filled_from=run)
    assert words == "The same settings as the <b>first</b>."


def test_long_values_and_many_changes_are_cut(form: Form, catalogue: Catalogue) -> None:  # noqa: F811
    assert "x" * 50 not in said(form, catalogue, {"name": "x" * 100})[0]
    run = ("a run", dict.fromkeys(form.names, "other"))
    assert "more" in said(form, catalogue, {}, filled_from=run)[0]


def test_a_mistake_of_the_run_before_is_left_out_and_the_form_says_so(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
    tmp_path: Path,
) -> None:
    broken = rundir.create(tmp_path, config.parse({"mistake": "no_sampler", "batch_size": 8}))
    store = store_of(tmp_path, catalogue)
    filled = fill_in.as_a_run_was(store, {"from": broken.run_id})
    assert (filled["mistake"], filled["batch_size"]) == ("none", 8)
    before = ("before", broken.read_config().to_json())
    words, _, _ = said(form, catalogue, filled, filled_from=before)
    assert words.startswith("As before, but: Broken on purpose No sampler → none")
    assert words.endswith("the mistake was left out of the form.")
    on_purpose = fill_in.as_a_run_was(store, {"from": broken.run_id, "mistake": "no_sampler"})
    assert on_purpose["mistake"] == "no_sampler", "a link may ask for it"


def test_a_mistake_is_in_the_last_fold_of_the_form(form: Form) -> None:
    assert form.fields_of_topic(list(TOPIC_TITLES)[-1]) == ["mistake", "fingerprint_every_steps"]
    assert form.usual_values()["mistake"] == "none"
    offered = [name for _, name in form.controls["mistake"].choices]
    assert offered[0] == "none" and "no_sampler" in offered
