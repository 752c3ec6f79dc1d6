"""The form: warnings, presets, suggestions, changed fields, messages and numbers as users type them."""

from __future__ import annotations

import html
import json
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import recipe
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.memory import warnings_before_start
from ddp_gui.plan.plan import make, parse
from ddp_gui.runs.runs import RunStore
from ddp_gui.train import fill_in, own_data
from ddp_gui.train import form as form_module
from ddp_gui.train.form import TOPIC_TITLES, Form, as_number
from tests.unit.ddp_gui.plan.test_own_data import EVIL, inspection_of, problem
from trainers.contract import config, rundir
from trainers.contract.config import ConfigError, Problem

LAPTOP = Machine(num_gpus=0, num_cores=2)


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
def test_every_preset_starts_here_without_warnings(real: Catalogue, preset: form_module.Preset) -> None:
    planned = make(parse(preset.values, LAPTOP), real, LAPTOP)
    assert warnings_before_start(planned, LAPTOP) == []


def test_a_preset_with_values_of_the_rules_is_marked(form: Form, real: Catalogue) -> None:
    values = dict(form_module.find_preset("austen").values)
    defaults = form.unset_values() | values | rules_of(real)(values)
    line = fill_in.changes_html(form, real, defaults, None, defaults)
    assert 'data-preset="austen"' in line
    assert 'data-preset=""' in fill_in.changes_html(form, real, defaults | {"num_epochs": 9}, None, defaults)


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
    store = RunStore(tmp_path, None)
    query = {"from": run.run_id, "learning_rate": "0.01", "scale_lr": "true", "__theme": "dark"}
    values = fill_in.read_run_config(store, query)
    filled = config.parse(values_of(form, fill_in.updates(form, values)))
    expected = {**was.to_json(), "learning_rate": 0.01, "scale_lr": True}
    assert filled == config.parse(expected)


@pytest.mark.parametrize("query", [{"from": "../../etc"}, {"from": "none-1"}, {}])
def test_an_address_without_a_run_is_refused(tmp_path: Path, query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="run_id"):
        fill_in.read_run_config(RunStore(tmp_path, None), query)


def test_other_data_than_a_presets_takes_its_other_fields_back(form: Form) -> None:
    opened = form.usual_values()
    taken_back = fill_in.preset_replacements(form, opened | {"dataset": "iris"})
    assert taken_back == {name: config.default_values()[name] for name in taken_back}
    assert set(taken_back) == {"num_epochs", "random_crop", "weight_decay"} <= set(form_module.FITTED_FIELDS)
    assert fill_in.preset_replacements(form, opened) == {}, "the data is the preset's own"
    assert fill_in.preset_replacements(form, opened | {"dataset": "iris", "num_epochs": 7}) == {}, (
        "a person's own"
    )
    moons = form.unset_values() | dict(form_module.find_preset("moons").values)
    assert fill_in.preset_replacements(form, moons | {"dataset": "wine"})["learning_rate"] == 0.002


def rules_of(catalogue: Catalogue) -> fill_in.Rules:
    """Return the equivalent of `Api.recipe` on this laptop."""

    def rules(raw: dict[str, Any]) -> dict[str, Any]:
        try:
            completed = recipe.complete(parse(raw, LAPTOP), catalogue, raw)
        except config.ConfigError:
            return {}
        return {name: getattr(completed, name) for name in recipe.FIELDS if name not in raw}

    return rules


def test_another_data_set_brings_the_rules_values_each_time(real: Catalogue, form: Form) -> None:
    rules = rules_of(real)
    raw = form.usual_values() | {"dataset": "iris", "model": "linear"}
    found, filled = fill_in.recommend_values(form, rules, "", raw, leaves_preset=True)
    assert {name: found[name] for name in recipe.FIELDS} == rules({"dataset": "iris", "model": "linear"})
    assert found["random_crop"] == 0, "the preset's other fields go back"
    assert fill_in.defaults_for(form, rules, form.usual_values()) == form.usual_values()
    changes = fill_in.list_changes(form, real, fill_in.defaults_for(form, rules, raw | found), raw | found)
    assert [change.name for change in changes] == ["model", "dataset"], "values of the rules are no changes"
    now = raw | found | {"dataset": "moons"}
    found, filled = fill_in.recommend_values(form, rules, filled, now, leaves_preset=True)
    assert {name: found[name] for name in recipe.FIELDS} == rules({"dataset": "moons", "model": "linear"})
    now |= found | {"nproc_per_node": 4}
    found, _ = fill_in.recommend_values(form, rules, filled, now, leaves_preset=False)
    assert found["batch_size"] == 16, "2,000 rows in 20 steps of 4 ranks"


def test_what_a_person_has_changed_stays_and_the_rules_count_with_it(real: Catalogue, form: Form) -> None:
    rules = rules_of(real)
    raw = form.usual_values() | {"dataset": "iris", "model": "linear"}
    found, filled = fill_in.recommend_values(form, rules, "", raw, leaves_preset=True)
    # A text control returns a text.
    now = raw | found | {"dataset": "wine", "batch_size": 30, "learning_rate": "0.0100"}
    found, filled = fill_in.recommend_values(form, rules, filled, now, leaves_preset=True)
    assert "batch_size" not in found and found["num_epochs"] == 334, "1,000 steps of 60 of 142 rows"
    assert found["learning_rate"] == 0.01, "0.0100 is what was filled in"
    assert "batch_size" not in json.loads(filled)


@pytest.fixture
def small_form(catalogue: Catalogue) -> Form:
    made = Form(catalogue, Machine(num_gpus=0, num_cores=2))
    with gr.Blocks():
        made.add_controls("dataset", "model", "nproc_per_node", "batch_size", "learning_rate", "num_epochs")
        for topic in TOPIC_TITLES:
            made.add_controls(*made.fields_of_topic(topic))
    return made


def changes(form: Form, catalogue: Catalogue, values: dict[str, Any], **more: Any) -> tuple[Any, ...]:
    """Return the text without tags, the selected preset, and the number of changes by topic."""
    line = fill_in.changes_html(form, catalogue, form.usual_values() | values, **{"filled_from": None} | more)
    preset = re.findall(r'data-preset="(.*?)"', line)[0]
    topics = json.loads(unescape(re.findall(r'data-topics="(.*?)"', line)[0]))
    return unescape(re.sub("<.*?>", "", line)), preset, topics


def test_each_change_is_told_and_counted_once_as_typed(small_form: Form, catalogue: Catalogue) -> None:
    words, _, topics = changes(
        small_form, catalogue, {"learning_rate": "0.002", "max_steps": "50", "scale_lr": True}
    )
    assert "Learning rate" not in words, "0.002 is the default, whether typed or not"
    assert "Stop after steps empty → 50" in words and "off → on" in words
    assert topics == {"schedule": 1, "optimizer": 1}
    (own, label), *_ = catalogue.own_data.items()
    assert f"→ {label}" in changes(small_form, catalogue, {"dataset": own})[0]
    assert "x" * 50 not in changes(small_form, catalogue, {"name": "x" * 100})[0], "long values are cut"


def test_a_form_filled_in_from_a_run_says_what_differs(small_form: Form, catalogue: Catalogue) -> None:
    run = ("the <b>first</b>", small_form.usual_values() | {"num_epochs": 3})
    words, _, _ = changes(small_form, catalogue, {"num_epochs": 3, "batch_size": 32}, filled_from=run)
    assert words == "Same settings as the <b>first</b>, except: Batch per rank 64 → 32"
    words, _, _ = changes(small_form, catalogue, {"num_epochs": 3}, filled_from=run)
    assert words == "Same settings as the <b>first</b>."


BUTTON = re.compile(r'<button type="button" class="ddp-suggestion" data-values="(.*?)">(.*?)</button>')


def buttons(page: str) -> list[tuple[dict[str, Any], str]]:
    found = BUTTON.findall(page)
    return [
        (json.loads(html.unescape(values)), html.unescape(re.sub("<.*?>", "", label)))
        for values, label in found
    ]


@pytest.mark.parametrize(
    ("suggested", "label"),
    [
        ({"label_column": ""}, "Use the column found automatically"),
        ({"data_task": "tabular_regression"}, "Use tabular regression"),
        ({"data_path": "/data/flowers.csv"}, "Use flowers.csv"),
        ({"label_column": EVIL}, f"Use {EVIL}"),
    ],
)
def test_what_helps_against_a_fault_is_a_click(suggested: dict[str, str], label: str) -> None:
    said = own_data.own_data(
        inspection_of(ok=False, problems=(problem(suggested=suggested),), num_problems=1)
    )
    assert buttons(said) == [(suggested, label)]
    assert "<img" not in said


def test_all_that_was_clicked_during_a_request_is_applied_in_order(form: Form) -> None:
    clicked = [
        {"data_reading": {"columns": {"price": "number"}}},
        {"data_reading": {"columns": {"colour": "ignored", "price": "text"}}, "label_column": "kind"},
        "nonsense",
        {"label_column": "size"},
    ]
    reading = '{"columns": {"weight": "ignored"}}'
    updates = dict(
        zip(fill_in.FIELDS, fill_in.suggestion_updates(form, json.dumps(clicked), reading), strict=True)
    )
    assert updates["label_column"]["value"] == "size"
    columns = {"weight": "ignored", "price": "text", "colour": "ignored"}
    assert json.loads(updates["data_reading"]["value"]) == {"columns": columns}
    assert updates["data_path"] == gr.skip()


FORM = cast("Form", SimpleNamespace(controls={"batch_size": SimpleNamespace(label="Batch per rank")}))


def error(field: str, value: Any) -> ConfigError:
    return ConfigError([Problem(field=field, value=value, allowed="a whole number from 1 to 9")])


def test_a_line_begins_with_the_fields_label_and_has_no_name_of_the_configuration() -> None:
    told = fill_in.problem_text(error("batch_size", 0), FORM)
    assert told == "Batch per rank: 0 is not possible. Allowed: a whole number from 1 to 9."
    listed = fill_in.problem_html(error("batch_size", 0), FORM)
    assert 'class="ddp-wrong" data-field="batch_size"' in listed
    assert 'data-go-to="batch_size"><bdi>Batch per rank</bdi></button>' in listed


@pytest.mark.parametrize("value", [None, "", "  "])
def test_an_empty_field_is_a_hint_and_no_error(value: Any) -> None:
    assert fill_in.problem_text(error("batch_size", value), FORM) == (
        "Batch per rank: not filled in. Allowed: a whole number from 1 to 9."
    )
    assert 'class="ddp-missing"' in fill_in.problem_html(error("batch_size", value), FORM)


@pytest.mark.parametrize(
    ("typed", "is_whole", "read"),
    [
        ("0,001", False, "0.001"),
        ("1,5e-3", False, "1.5e-3"),
        ("1 000", True, "1000"),
        ("1\u202f000\u00a0000", True, "1000000"),
        ("1,000", True, "1000"),
        ("1.000", True, "1000"),
        ("1'000", True, "1000"),
        ("1,000", False, "1.000"),
        ("1,234.5", False, "1234.5"),
        ("1.234,5", False, "1234.5"),
        ("abc", False, "abc"),
        ("1,2,3", False, "1,2,3"),
    ],
)
def test_a_number_is_understood_as_people_type_it(typed: str, is_whole: bool, read: str) -> None:
    assert as_number(typed, is_whole=is_whole) == read
