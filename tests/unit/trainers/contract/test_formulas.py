"""Tests of plug-in formulas: their values, and rejection of everything except arithmetic on fields."""

from __future__ import annotations

from typing import Any

import pytest

from trainers.contract.config import Config
from trainers.contract.config.options import Check, FormulaError, evaluate_formula

VALUES = Config(nproc_per_node=6, tensor_parallel_size=2, precision="bf16").values()


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("all", 6),
        ("all // tensor_parallel_size + 1", 4),
        ("all % 4 == 2", True),
        ("precision != 'fp16'", True),
        ("not static_graph or gradient_accumulation_steps == 1", True),
        ("all > 1 and all <= 4", False),
        ("1 if gradient_as_bucket_view else 2", 1),
    ],
)
def test_formula_gives_what_python_gives(formula: str, expected: Any) -> None:
    assert evaluate_formula(formula, VALUES) == expected


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "no_such_field",
        "all // 0",
        "'a' - 1",
        "__import__('os')",
        "precision.upper()",
        "9 ** 9",
        "1 < all < 9",
        "f'{all}'",
    ],
)
def test_anything_else_is_refused_by_name(formula: str) -> None:
    with pytest.raises(FormulaError) as refused:
        evaluate_formula(formula, VALUES)
    assert repr(formula) in str(refused.value)


def test_check_that_does_not_hold_names_field_value_and_what_is_allowed() -> None:
    check = Check(holds="all % 4 == 0", field="nproc_per_node", allowed="a multiple of 4, not {all}")
    assert str(check.problem(VALUES)) == "nproc_per_node is 6; allowed: a multiple of 4, not 6."
    assert check.problem(VALUES | {"all": 8}) is None
    with pytest.raises(FormulaError, match="no_such"):
        Check(holds="1 == 2", field="no_such", allowed="").problem(VALUES)
