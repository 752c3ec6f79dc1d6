"""Tests of the form's text on changed fields, and of the selected preset."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import gradio as gr
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.train import fill_in
from ddp_gui.train.form import TOPIC_TITLES, Form
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture


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


def test_each_change_is_told_and_counted_once_as_people_typed_it(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
) -> None:
    words, _, topics = said(form, catalogue, {"learning_rate": "0.002", "max_steps": "50", "scale_lr": True})
    assert "Learning rate" not in words, "0.002 is the default, whether typed or not"
    assert "Stop after steps empty → 50" in words and "off → on" in words
    assert topics == {"schedule": 1, "optimizer": 1}
    (own, label), *_ = catalogue.own_data.items()
    assert f"→ {label}" in said(form, catalogue, {"dataset": own})[0]


def test_a_form_filled_in_from_a_run_says_what_differs_from_it(
    form: Form,
    catalogue: Catalogue,  # noqa: F811
) -> None:
    run = ("the <b>first</b>", form.usual_values() | {"num_epochs": 3})
    words, _, _ = said(form, catalogue, {"num_epochs": 3, "batch_size": 32}, filled_from=run)
    assert words == "As the <b>first</b>, but: Batch per rank 64 → 32"
    words, _, _ = said(form, catalogue, {"num_epochs": 3}, filled_from=run)
    assert words == "Same settings as the <b>first</b>."


def test_long_values_and_many_changes_are_cut(form: Form, catalogue: Catalogue) -> None:  # noqa: F811
    assert "x" * 50 not in said(form, catalogue, {"name": "x" * 100})[0]
    run = ("a run", dict.fromkeys(form.names, "other"))
    assert "more" in said(form, catalogue, {}, filled_from=run)[0]
