"""The README's table is generated from the stored figures."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as everything
from benchmarks.readme_table import ROWS, Spread, table
from tools.page_driver import REPOSITORY


def test_a_spread_is_written_with_its_unit() -> None:
    spread = Spread(median=1.234, min=1.0, max=2.5)
    assert f"{spread:2 ×}" == "1.23 × (1.00–2.50)"
    assert f"{spread:0}" == "1 (1–2)"


def test_what_was_not_measured_has_no_row() -> None:
    spread = {"median": 0.913, "min": 0.755, "max": 1.048}
    held = {"watching": {"figures": {"ratio": spread}, "measured": "2026-11-22"}}
    assert table(held).splitlines()[2:] == [
        (
            "| Five viewers and all that is measured, against neither | 0.913 × (0.755–1.048) "
            "| watching, 2026-11-22 |"
        )
    ]


def test_every_row_is_of_a_script_there_is() -> None:
    assert {script for _, script, _ in ROWS} <= everything.SCRIPTS.keys()


@pytest.mark.parametrize("line", table(json.loads(everything.FIGURES.read_text())).splitlines())
def test_the_readme_has_the_figures_that_were_measured(line: str) -> None:
    assert line in (REPOSITORY / "README.md").read_text(encoding="utf-8")
