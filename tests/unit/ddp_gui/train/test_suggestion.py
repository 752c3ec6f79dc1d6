"""A suggestion is a button that carries its values; a click sets only allowed fields."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import gradio as gr
import pytest

from ddp_gui.train import fill_in, own_data
from ddp_gui.train.form import Form
from tests.unit.ddp_gui.plan.test_own_data import EVIL, inspection_of, problem
from tests.unit.ddp_gui.train.test_form_help import form, real  # noqa: F401 - fixtures

BUTTON = re.compile(r'<button type="button" class="ddp-suggestion" data-values="(.*?)">(.*?)</button>')


def buttons(page: str) -> list[tuple[dict[str, Any], str]]:
    """Return the values and the label of each suggestion."""
    found = BUTTON.findall(page)
    return [
        (json.loads(html.unescape(values)), html.unescape(re.sub("<.*?>", "", label)))
        for values, label in found
    ]


@pytest.mark.parametrize(
    ("suggested", "label"),
    [
        ({"label_column": "kind"}, "Use kind"),
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


def test_all_that_was_clicked_during_a_request_is_applied_in_order(form: Form) -> None:  # noqa: F811
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


@pytest.mark.parametrize(("most", "lowered"), [(1, 1), (3, 3), (4, 4), (15, 4), (16, 4), (48, 8), (500, 64)])
def test_a_lowered_batch_leaves_several_steps_an_epoch(most: int, lowered: int) -> None:
    assert own_data._fitting_batch(most) == lowered <= most
