"""Run all benchmarks, store their figures in one file, and print the README's table: `make bench`.

    python -m benchmarks [--only compare,startup] [--but recipes] [--into benchmarks/figures.json] [--table]

The scripts run one after the other; the figures of each replace its previous ones in the file. `--only`
repeats the measurements that a change may have affected. `--table` prints the table from the file without
measuring. Scripts that fail are listed at the end and keep their previous figures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, COMPARED_WITH_ALL
from benchmarks.readme_table import table
from tools.page_driver import REPOSITORY

FIGURES = REPOSITORY / "benchmarks" / "figures.json"
# The environment with Accelerate and Lightning: requirements.txt and requirements-bench.txt.
RIVALS_PYTHON = REPOSITORY / ".venv-bench" / "bin" / "python"
OTHER_CASES = ",".join(name for name in CASES if name not in COMPARED_WITH_ALL)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A module of this package, its arguments, and whether it writes JSON in addition to its output."""

    module: str
    arguments: tuple[str, ...] = ()
    writes_json: bool = False


SCRIPTS = {
    "compare": Script(module="compare", arguments=("--rivals-python", str(RIVALS_PYTHON)), writes_json=True),
    "compare-others": Script(
        module="compare",
        arguments=("--cases", OTHER_CASES, "--rivals", "bare", "--rounds", "3"),
        writes_json=True,
    ),
    "startup": Script(module="startup", writes_json=True),
    "watching": Script(module="watching", writes_json=True),
    "saving": Script(module="saving", writes_json=True),
    "loading": Script(module="loading", writes_json=True),
    "recipes": Script(module="recipes"),
    "gpu": Script(module="gpu", writes_json=True),
}


def main() -> None:
    """Run the selected scripts, store the figures, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SCRIPTS), help="scripts, separated by commas")
    parser.add_argument("--but", default="", help="scripts to leave out")
    parser.add_argument("--into", type=Path, default=FIGURES)
    parser.add_argument("--table", action="store_true", help="print the table, measure nothing")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name not in options.but.split(",")]
    if unknown := [name for name in wanted if name not in SCRIPTS]:
        parser.error(f"there is no {', '.join(unknown)}; there is: {', '.join(SCRIPTS)}")
    failed = [] if options.table else [name for name in wanted if not measure(name, options.into)]
    print(table(read(options.into)))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def measure(name: str, into: Path) -> bool:
    """Run a script, print its output and store its figures. Return True if it succeeded."""
    script = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        command = [sys.executable, "-m", f"benchmarks.{script.module}", *script.arguments]
        command += ["--json", str(written)] if script.writes_json else []
        print(f"\n## {name}: {' '.join(command[1:])}", flush=True)
        ended = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
        print(ended.stdout, flush=True)
        if ended.returncode:
            return False
        found = json.loads(written.read_text()) if script.writes_json else _read_aloud(ended.stdout)
    measured = {"measured": datetime.datetime.now(datetime.UTC).date().isoformat(), "figures": found}
    into.write_text(json.dumps(read(into) | {name: measured}, indent=1) + "\n")
    return True


def read(path: Path) -> dict[str, Any]:
    """Return the stored figures."""
    held: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return held


def _read_aloud(printed: str) -> Any:
    """Return the JSON that a script printed, or the lines of its table."""
    try:
        return json.loads(printed)
    except ValueError:
        return printed.strip().splitlines()


if __name__ == "__main__":
    main()
