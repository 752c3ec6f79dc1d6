"""Reports for the tests: source, request and result."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ddp_gui.learn.code_lesson import CodeLibrary
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.report import document, request
from ddp_gui.learn.report.request import ReportSource
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs.runs import RunStore
from tests import made_run
from tests.unit.ddp_gui.learn.lessons import LESSON, changed
from trainers.contract.rundir import RunDirectory

CURVE = """\
curve = "loss"
axis = "step"
run = 0
until = 40
low = 0
high = 4
"""
CHOICE = 'choices = ["the first", "**neither**"]\nright = 1\nbecause = "Both see the same."\n'
NOW_UNIX_S = 1_800_000_000.0


def source_of(folder: Path, catalogue: Catalogue) -> ReportSource:
    """Return a source with two lessons, `chosen` and `drawn`, and the runs of a folder."""
    lessons = folder / "lessons"
    lessons.mkdir(exist_ok=True)
    (lessons / "01-chosen.md").write_text(LESSON)
    (lessons / "02-drawn.md").write_text(changed(CHOICE, CURVE))
    store = RunStore(folder / "runs", SimpleNamespace(get=lambda: catalogue))
    return ReportSource(library=Library([lessons]), in_code=CodeLibrary([lessons]), store=store)


def make_run(folder: Path, run_id: str, num_steps: int = 120) -> RunDirectory:
    run = RunDirectory(folder / "runs" / run_id)
    made_run.make_finished(run, num_steps)
    return run


def report(source: ReportSource, **asked: Any) -> str:
    """Return the file of the requested report."""
    gathered = request.gather_inputs(source, request.parse(asked), NOW_UNIX_S)
    return b"".join(document.generate_report(gathered)).decode()


def done(lesson: str, **more: Any) -> dict[str, Any]:
    """Return the record of a user who completed a lesson without mistakes."""
    usual = {"prediction": 1, "runs": ["a-1", "b-1"], "attempts": [], "answers": [0, 1]}
    return {"lesson": lesson, **usual, **more}
