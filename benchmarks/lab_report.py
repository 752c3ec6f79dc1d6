"""How large a lab report is, and how long it takes: twelve lessons, each with two runs of 100,000 steps.

    python -m benchmarks.lab_report [--steps 100000] [--lessons 12] [--json FILE]

The runs are made up (`made_run`), one is written and the others are links to its events; each is read and
hashed by itself. Small is what a learner has after one lesson: two runs of 300 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import made_run
from ddp_gui.background import trainer_process
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.report import document, request
from ddp_gui.plan.catalogue import CatalogueSource
from ddp_gui.runs.runs import RunStore
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import ASSETS

RUNS_OF_A_LESSON = 2
SMALL_STEPS = 300


def main() -> None:
    """Make both reports and print what they cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--lessons", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = _measure(Path(folder) / "small", 1, SMALL_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        large = _measure(Path(folder) / "large", options.lessons, options.steps)
    found = {"small": small, "large": large}
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found))


def _measure(folder: Path, num_lessons: int, num_steps: int) -> dict[str, Any]:
    """Return the size of a report and the seconds until its last byte, made by a process as on the page."""
    lessons, runs_dir = folder / "lessons", folder / "runs"
    lessons.mkdir(parents=True)
    text = next((ASSETS / "lessons").glob("*-global-batch.md")).read_text(encoding="utf-8")
    for number in range(num_lessons):
        (lessons / f"lesson-{number}.md").write_text(text, encoding="utf-8")
    names = [f"run-{number}" for number in range(RUNS_OF_A_LESSON * num_lessons)]
    _make_runs(runs_dir, names, num_steps)
    asked = {
        "name": "A learner",
        "lessons": [
            {
                "lesson": f"lesson-{number}",
                "prediction": 0,
                "answers": [0, 1],
                "runs": names[2 * number :][:2],
            }
            for number in range(num_lessons)
        ],
    }
    catalogue = CatalogueSource(trainer_process.default_cache_file("catalogue"))
    catalogue.get()
    source = request.Source(library=Library([lessons]), store=RunStore(runs_dir, catalogue))
    began = time.perf_counter()
    gathered = request.gather_inputs(source, request.parse(asked), time.time())
    size = sum(map(len, document.beside(gathered)))
    took_s = time.perf_counter() - began
    assert size <= document.MAX_BYTES, size
    return {"num_runs": len(names), "num_steps": num_steps, "size_bytes": size, "took_s": round(took_s, 2)}


def _make_runs(runs_dir: Path, names: list[str], num_steps: int) -> None:
    first = RunDirectory(runs_dir / names[0])
    made_run.make_finished(first, num_steps)
    for name in names[1:]:
        run = RunDirectory(runs_dir / name)
        made_run.make_finished(run, 1)
        run.events.unlink()
        os.link(first.events, run.events)


if __name__ == "__main__":
    main()
