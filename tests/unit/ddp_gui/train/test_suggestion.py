"""A suggestion is a button that carries its values; a click sets only allowed fields."""

from __future__ import annotations

import html
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_gui.train import fill_in, own_data
from ddp_gui.train.form import Form
from tests.unit.ddp_gui.plan.test_own_data import EVIL, inspection_of, problem
from tests.unit.ddp_gui.train.test_form_help import form, real  # noqa: F401 - fixtures
from trainers.contract.config import ConfigError, Problem

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


@pytest.mark.parametrize(
    ("kind", "num", "num_problems", "label"),
    [
        ("images", 3, 3, "Leave these 3 out"),
        ("images", 1, 1, "Leave this one out"),
        ("table", 4, 1, "Leave these 4 out"),
        ("table", 4, 2, "Leave these rows out"),
    ],
)
def test_unreadable_samples_are_left_out_by_a_click(
    kind: str, num: int, num_problems: int, label: str
) -> None:
    faults = tuple(problem(line) for line in range(num_problems))
    look = inspection_of(kind=kind, problems=faults, num_problems=num_problems, num_to_leave_out=num)
    assert buttons(own_data.own_data(look)) == [({"skip_unreadable": True}, label)]
    assert buttons(own_data.own_data(inspection_of(problems=faults, num_problems=num_problems))) == []


def test_the_nearest_possible_value_is_a_click() -> None:
    control = SimpleNamespace(label="Batch per rank")
    fields = cast("Form", SimpleNamespace(controls={"batch_size": control}))
    wrong = Problem(field="batch_size", value=5000, allowed="at most 1,500", suggestion=1500)
    assert buttons(fill_in.problem_html(ConfigError([wrong]), fields)) == [
        ({"batch_size": 1500}, "Use 1,500")
    ]


def test_a_click_sets_what_it_names_and_leaves_the_rest(form: Form) -> None:  # noqa: F811
    fields = dict(
        zip(fill_in.FIELDS, fill_in.suggestion_updates(form, '{"batch_size": 4, "seed": 7}'), strict=True)
    )
    assert fields["batch_size"]["value"] == 4
    assert all("value" not in update for name, update in fields.items() if name != "batch_size")
    for nonsense in ("", "{", "[1]", "null"):
        assert all("value" not in update for update in fill_in.suggestion_updates(form, nonsense))


@pytest.mark.parametrize(("most", "lowered"), [(1, 1), (3, 3), (4, 4), (15, 4), (16, 4), (48, 8), (500, 64)])
def test_a_lowered_batch_leaves_several_steps_an_epoch(most: int, lowered: int) -> None:
    assert own_data._fitting_batch(most) == lowered <= most
