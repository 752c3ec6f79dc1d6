"""From starting the page to its first answer, against a Gradio app with nothing in it.

    python -m benchmarks.serving [--rounds 7] [--app] [--runs 0] [--json FILE]

In turns: `./run.sh` until its page answers, and `benchmarks/empty_gradio`, which is less than a hello-world.
Each is started twice before that and not counted, so that files and caches are as on any but the first day.
With --app it is `app.py` by this interpreter, for a checkout that `./run.sh` has installed nothing in.

With --runs there are so many runs on the disk, made up as `benchmarks/many_runs` does, and the table also has
the resident memory of the page's process when it has listed them all.
"""

from __future__ import annotations

import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks import made_up_runs, pairs
from benchmarks.machine import Conditions, resident_mb
from benchmarks.pairs import Figures
from tools import page_driver

NUM_WARM_UPS = 2
STEPS_OF_A_RUN = 300


def main() -> None:
    """Measure in turns and print the table."""
    parser = pairs.parser_of(__doc__)
    parser.add_argument("--app", action="store_true", help="start app.py by this interpreter")
    parser.add_argument("--runs", type=int, default=0, help="runs that are there already")
    options = parser.parse_args()
    if not options.app and not is_installed():
        parser.error("./run.sh has installed nothing here: run it once, or give --app")
    conditions = Conditions.note()
    program = [sys.executable, "app.py"] if options.app else ["./run.sh"]
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder) / "runs"
        made_up_runs.make(runs_dir, options.runs, STEPS_OF_A_RUN)
        ways: dict[str, Callable[[], Figures]] = {"page": lambda: page(program, runs_dir), "gradio": gradio}
        for way in ways.values():
            for _ in range(NUM_WARM_UPS):
                way()
        found = pairs.in_turns(ways, options.rounds)
    served = {name: pairs.column(rounds, "served_after_s") for name, rounds in found.items()}
    told = {"page_served_after_s": served["page"], "gradio_served_after_s": served["gradio"]}
    told["ratio"] = pairs.ratios(served["page"], served["gradio"])
    told["page_resident_mb"] = pairs.column(found["page"], "resident_mb")
    told["gradio_resident_mb"] = pairs.column(found["gradio"], "resident_mb")
    pairs.tell(told, conditions, options.json)


def is_installed() -> bool:
    """Tell whether `./run.sh` has made the environment here; it would make it first, for minutes."""
    origin = page_driver.REPOSITORY / ".venv" / "origin"
    return origin.exists() and str(page_driver.REPOSITORY) in origin.read_text().splitlines()


def page(program: list[str], runs_dir: Path) -> Figures:
    """Serve the page and have it list its runs; `run.sh` becomes the page's process."""
    port = page_driver.free_port()
    command = [*program, "--no-browser", "--port", str(port), "--runs-dir", str(runs_dir)]
    with page_driver.serve_command(command, port) as server:
        with urllib.request.urlopen(f"{server.address}/live/runs", timeout=600) as answer:
            answer.read()
        return {
            "served_after_s": server.served_after_s,
            "resident_mb": resident_mb(server.process.pid),
        }


def gradio() -> Figures:
    """Serve a Gradio app with nothing in it."""
    port = page_driver.free_port()
    command = [sys.executable, "-m", "benchmarks.empty_gradio", str(port)]
    with page_driver.serve_command(command, port) as server:
        return {
            "served_after_s": server.served_after_s,
            "resident_mb": resident_mb(server.process.pid),
        }


if __name__ == "__main__":
    main()
