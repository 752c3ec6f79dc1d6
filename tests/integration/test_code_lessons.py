"""The checks of the lessons in code, on scripts that two watched ranks really run.

All variants: `python -m tests.code_variants.runner TABLE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.code_variants import runner
from tests.harness import END_TIMEOUT_S, run_to_end

CASES = [
    (name, title, expected)
    for name, lesson in runner.lessons().items()
    for title, expected, _ in runner.rows_of(lesson, is_subset=True)
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The findings for all variants of the subset, from one process that forks their ranks."""
    path = tmp_path_factory.mktemp("variants") / "table"
    command = [sys.executable, "-m", "tests.code_variants.runner", str(path), "--subset"]
    exit_code, said = run_to_end(command, 2 * END_TIMEOUT_S)
    assert exit_code == 0, said
    return Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("lesson", "title", "expected"), CASES, ids=lambda each: each.replace(" ", "_")[:40])
def test_a_mistake_is_recognised_and_a_correct_variant_accepted(
    lesson: str, title: str, expected: str, table: str
) -> None:
    (row,) = [line for line in table.splitlines() if line[3:].startswith(f"{lesson:18} {title:42} ")]
    assert row.startswith("ok "), f"expected {expected}: {row}"
