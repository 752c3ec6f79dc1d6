"""Time from the click on Start to the first point on the chart, compared with torchrun's first step.

    python -m benchmarks.startup [--rounds 7] [--json FILE]

Each round measures, one after the other: Start on a page with a warm pool, Start on a page without, and
`torchrun` of the bare script of `benchmarks/rivals`, with the same model, data and number of ranks. Clicks
happen in a real Chromium; a point counts as visible in the animation frame after the chart was drawn. Users
need seconds to read the form, so the click happens when the warm pool is ready.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cases import CASES
from benchmarks.compare import play_rival, wait_for_end
from benchmarks.machine import Conditions, summary
from tools import page_driver
from tools.page_driver import NO_STANDBY, Server
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import fork_server

READY_WITHIN_S = 60.0
QUIET_PERCENT = 5.0
CPU_SAMPLE_S = 1.0
NUM_STEPS = 50
FIRST_POINT = "() => (window.ddpDrawLog || []).some(entry => entry.points > 0)"
WAYS = ("standing by", "cold", "bare torchrun")


def main() -> None:
    """Measure all rounds and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    conditions = Conditions.note()
    rounds = []
    for number in range(options.rounds):
        rounds.append(play(number))
        print(f"round {number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
    found: dict[str, Any] = {way: summary([played[way] for played in rounds]) for way in rounds[0]}
    found["ratio of standing by"] = summary(
        [played["standing by"] / played["bare torchrun"] for played in rounds]
    )
    found["ratio of cold"] = summary([played["cold"] / played["bare torchrun"] for played in rounds])
    print("| | median | smallest | largest |\n|---|---|---|---|")
    for name, values in found.items():
        unit = "×" if name.startswith("ratio") else "s"
        print(f"| {name} | {values['median']:.2f} {unit} | {values['min']:.2f} | {values['max']:.2f} |")
    if options.json:
        options.json.write_text(json.dumps({**found, **conditions.report()}, indent=2) + "\n")


def play(number: int) -> dict[str, float]:
    """Start once in each way. `number` rotates the order."""
    took = {}
    ways = WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            if way == "bare torchrun":
                took[way] = bare(Path(folder))
            else:
                took[way] = click(Path(folder) / "runs", [NO_STANDBY] if way == "cold" else [])
    return took


def bare(folder: Path) -> float:
    """Return the seconds from starting torchrun to the end of the first step."""
    began = time.time()
    outcome = play_rival(CASES["cnn"], "benchmarks.rivals.bare", sys.executable, folder, NUM_STEPS)
    return outcome.first_step_unix_s - began


def click(runs_dir: Path, options: list[str]) -> float:
    """Return the seconds from the click on Start, with the default form, to the first point."""
    with page_driver.serve(runs_dir, *options) as server, page_driver.open_browser() as browser:
        page = page_driver.open_page(browser, server.address, times_frames=True)
        page.wait_for_function("() => document.querySelector('.ddp-equation') !== null")
        page.get_by_role("button", name="Close").click()  # the tour
        if not options:
            wait_until_ready(server)
        clicked = time.time()
        page.get_by_role("button", name="Start").click()
        page.wait_for_function(FIRST_POINT, timeout=60_000)
        first_point_s = time.time() - clicked
        run = RunDirectory(next(path for path in runs_dir.iterdir() if not path.name.startswith(".")))
        run.append_command("stop", save=False)
        wait_for_end(run)
        return first_point_s


def wait_until_ready(server: Server) -> None:
    """Wait until the template has imported torch and is idle.

    Raises:
        TimeoutError: it is not idle after READY_WITHIN_S.
    """
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        children = psutil.Process(server.process.pid).children(recursive=True)
        templates = [child for child in children if fork_server.__name__ in child.cmdline()]
        has_torch = ["libtorch_python" in Path(f"/proc/{each.pid}/maps").read_text() for each in templates]
        if has_torch == [True] and templates[0].cpu_percent(CPU_SAMPLE_S) < QUIET_PERCENT:
            return
        time.sleep(CPU_SAMPLE_S)
    raise TimeoutError("no template is ready")


if __name__ == "__main__":
    main()
