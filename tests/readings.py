"""Print how files of real users are read, as a table: reading, messages, clicks.

    python -m tests.readings [FILE ...] [--variants]

Without files, those of the unit tests are read; with --variants also the tables of test_table_variants.py.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.unit.own_files import inspected
from tests.unit.trainers.data.own.test_people_files import FILES
from tests.unit.trainers.data.own.test_table_variants import CASES, make
from trainers.data.own.cache import CACHE_VARIABLE

MAX_CELL = 160


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--variants", action="store_true")
    asked = parser.parse_args()
    print("| file | reading | messages | clicks |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE_VARIABLE] = folder
        for path in asked.files or sorted(FILES.iterdir()):
            print(_line(path.name, inspected(path)), flush=True)
        for name, case in CASES.items() if asked.variants else ():
            (Path(folder) / name.replace("/", " ")).mkdir()
            path = make(case, Path(folder) / name.replace("/", " "))
            print(_line(name, inspected(path, **case.options)), flush=True)


def _line(name: str, answer: dict[str, Any]) -> str:
    decisions = [f"{each['name']}: {each['decision']}" for each in answer["columns"]]
    label = f", label {answer['label_column']}" if answer["label_column"] else ""
    state = "" if answer["ok"] else " (refused)"
    reading = f"{answer['task'] or 'nothing'}{state}{label}; {'; '.join(decisions)}"
    messages = "; ".join(each["message"] for each in answer["problems"])
    clicks = "; ".join(
        each["action"] or str(each["suggested"]) for each in answer["problems"] if each["suggested"]
    )
    cells = [" ".join(cell.split()).replace("|", "¦") for cell in (name, reading, messages, clicks)]
    return "| " + " | ".join(c if len(c) <= MAX_CELL else c[: MAX_CELL - 1] + "…" for c in cells) + " |"


if __name__ == "__main__":
    main()
