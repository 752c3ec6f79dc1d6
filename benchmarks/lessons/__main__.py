"""Run every lesson as the page does: how often its effect shows, and how long it takes.

    python -m benchmarks.lessons [--seeds 10] [--only seeds-and-bits,speed-up] [--json FILE]

Serves a page, starts the runs of a lesson one after the other by its endpoint, as the Learn page does, and
polls them at the same interval. Prints a Markdown table: the number of seeds for which the condition of the
right answer holds, as on the page, and the seconds from the click to the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import Conditions
from ddp_gui.events.run_view import RunView
from ddp_gui.learn import outcome
from ddp_gui.learn.export import LessonRunner
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import ChoiceQuestion, Lesson, LessonRun
from ddp_gui.learn.measures import RunName, RunNumbers
from ddp_gui.plan import recipe
from ddp_gui.server import LESSONS
from tools import page_driver
from trainers.contract.rundir import RunDirectory


def main() -> None:
    """Measure the selected lessons and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    lessons, broken = Library([LESSONS]).read()
    assert not broken, broken
    wanted = set(filter(None, options.only.split(",")))
    conditions = Conditions()
    found = {}
    print("| lesson | effect | seeds | seconds, median | longest |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, page_driver.serve(Path(folder)) as server:
        runner = LessonRunner(server.address)
        for lesson in lessons:
            if wanted and lesson.name not in wanted:
                continue
            found[lesson.name] = row = measure(lesson, runner, Path(folder), options.seeds)
            print(
                f"| {lesson.title} | {row['effect']} | {row['num_shown']} of {options.seeds} "
                f"| {statistics.median(row['seconds']):.1f} | {max(row['seconds']):.1f} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found | conditions.report(), indent=2) + "\n", encoding="utf-8")


def measure(lesson: Lesson, runner: LessonRunner, runs_dir: Path, num_seeds: int) -> dict[str, Any]:
    """Run a lesson with several seeds. Return how often its effect showed, and the seconds of each."""
    asked = lesson.prediction
    assert isinstance(asked, ChoiceQuestion)
    verdicts, seconds = [], []
    for seed in range(num_seeds):
        runs, took_s = dict[RunName, RunNumbers](), 0.0
        for number, run in enumerate(lesson.runs):
            runs[number], run_s = one_run(runner, runs_dir, run, seed)
            took_s += run_s
        verdicts.append(outcome.of_choice(asked, runs).verdict)
        seconds.append(took_s)
    num_shown = verdicts.count("explained")
    condition = asked.measured[asked.right]
    return {"effect": f"`{condition}`", "num_shown": num_shown, "verdicts": verdicts, "seconds": seconds}


def one_run(runner: LessonRunner, runs_dir: Path, run: LessonRun, seed: int) -> tuple[RunNumbers, float]:
    """Start a run as the page does. Return its measurements, and the seconds until they are read."""
    began = time.monotonic()
    config = recipe.with_fixed_defaults(run.config) | {"seed": seed}
    run_id = runner.run(run, "start_run", config, False)
    took_s = time.monotonic() - began
    view = RunView(RunDirectory(runs_dir / run_id), None)
    view.catch_up()
    state = view.status().state
    return RunNumbers.of(run.name, state, view.config.world_size, view.series), took_s


if __name__ == "__main__":
    main()
