"""The README's table is generated from the stored figures."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as everything
from benchmarks.readme_table import ROWS, table
from tools.page_driver import REPOSITORY


def test_every_row_is_of_a_script_there_is() -> None:
    assert {script for _, script, _ in ROWS} <= everything.SCRIPTS.keys()


@pytest.mark.parametrize("line", table(json.loads(everything.FIGURES.read_text())).splitlines())
def test_the_readme_has_the_figures_that_were_measured(line: str) -> None:
    assert line in (REPOSITORY / "README.md").read_text(encoding="utf-8")
