"""Tests of the form's error messages, and of number formats that users type."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_gui.train import fill_in
from ddp_gui.train.form import Form, as_number
from trainers.contract.config import ConfigError, Problem

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
        ("0.001", False, "0.001"),
        ("1e-3", False, "1e-3"),
        ("1,5e-3", False, "1.5e-3"),
        ("1 000", True, "1000"),
        ("1\u202f000\u00a0000", True, "1000000"),
        ("1,000", True, "1000"),
        ("1.000", True, "1000"),
        ("1'000", True, "1000"),
        ("1,000", False, "1.000"),
        ("1,234.5", False, "1234.5"),
        ("1.234,5", False, "1234.5"),
        ("-0,5", False, "-0.5"),
        ("", False, ""),
        ("abc", False, "abc"),
        ("1,2,3", False, "1,2,3"),
        ("0,001x", False, "0,001x"),
        ("1,00", True, "1.00"),
    ],
)
def test_a_number_is_understood_as_people_type_it(typed: str, is_whole: bool, read: str) -> None:
    assert as_number(typed, is_whole=is_whole) == read
