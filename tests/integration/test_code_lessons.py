"""The checks of the lessons in code, on scripts that two watched ranks really run.

ALL_VARIANTS=1 runs all variants instead of a subset.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddp_gui.learn import code_checks, code_facts
from ddp_gui.learn.code_facts import RunFacts
from ddp_gui.learn.code_lesson import CodeLesson, CodeLibrary
from tests.code_variants import PASSED, SUBSET, WRONG, variants_of
from tests.integration.conftest import Ranks
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import ASSETS
from trainers.watch import spool

ALL = "ALL_VARIANTS" in os.environ
# A script that notes nothing for this time hangs.
QUIET_S = 8.0


def cases() -> list[tuple[CodeLesson, str, str, str]]:
    """Return lesson, title, expected finding and script of each variant."""
    found = []
    for lesson in CodeLibrary([ASSETS / "lessons"]).read()[0]:
        rows = [("first script", WRONG, lesson.script), ("solution", PASSED, lesson.solution)]
        played = [each for each in variants_of(lesson.name) if ALL or each.name in SUBSET[lesson.name]]
        rows += [(each.name, each.expected, each.script(lesson)) for each in played]
        found += [(lesson, *row) for row in rows]
    return found


def config_facts(script: str, folder: Path, ranks: Ranks) -> RunFacts:
    """Run a script on two ranks and return what they did."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    error = folder / "error.json"
    variables = {spool.DETAILS: "1", "TORCHELASTIC_ERROR_FILE": str(error)}
    ranks.start("watched", folder, 2, variables, may_fail=True, quiet_s=QUIET_S)
    noted = code_facts.read_ranks(RunDirectory(folder / "run"), 2)
    if any(code > 0 for code in ranks.codes):
        message = json.loads(error.read_text())["message"]["message"] if error.exists() else "a rank failed"
        return RunFacts(ranks=noted, state="failed", code="exception", error=message)
    if any(ranks.codes):
        return RunFacts(ranks=noted, state="failed", code="hang", error="The run hangs.")
    return RunFacts(ranks=noted, state="finished", code="", error="")


@pytest.mark.parametrize(
    ("lesson", "title", "expected", "script"),
    [pytest.param(*case, id=f"{case[0].name}: {case[1]}") for case in cases()],
)
def test_a_mistake_is_recognised_and_a_correct_variant_accepted(
    lesson: CodeLesson, title: str, expected: str, script: str, ranks: Ranks, tmp_path: Path
) -> None:
    results = code_checks.check(config_facts(script, tmp_path, ranks), lesson, lesson.checks)
    finding = next((each.finding for each in results if each.finding), None)
    found = PASSED if finding is None else finding.code
    assert found in expected.split() or (expected == WRONG and found != PASSED), (title, finding)
