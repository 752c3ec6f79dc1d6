"""Apply the examples of docs/adding.md to a copy of the repository."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from tests.harness import REPOSITORY

PAGE = REPOSITORY / "docs" / "adding.md"
CHARTS = "ddp_gui/events/tables.py"
INSIGHTS = "ddp_gui/events/analysis/insights.py"
COMMANDS = "trainers/contract/commands.py"
HANDLERS = "trainers/control.py"
# Insertion point of an entry, by file. Functions are appended at the end of the file.
ENDS = {CHARTS: "\n)\n\n\ndef chart_columns(", COMMANDS: "\n}\nCOMMAND_NAMES"}


def examples() -> dict[str, str]:
    """Return the code of each example, keyed by the path mentioned last before it."""
    found: dict[str, str] = {}
    path = ""
    for part in re.split(r"(?m)^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        if path and part.startswith(('"""', "StepChart(", "@rule(", '"evaluate"', "@handles(")):
            assert path not in found, path
            found[path] = part
        else:
            path = [path, *re.findall(r"`([\w/]+\.py)`", part)][-1]
    return found


def new_files() -> list[str]:
    """Return the paths of the examples that are new files."""
    return [path for path in examples() if path not in (*ENDS, INSIGHTS, HANDLERS)]


def add_to(root: Path) -> None:
    """Add every example to a copy of the repository."""
    for path, code in examples().items():
        place = root / path
        if path in ENDS:
            before = place.read_text(encoding="utf-8")
            assert before.count(ENDS[path]) == 1
            entry = textwrap.indent(code.rstrip().removesuffix(","), "    ")
            code = before.replace(ENDS[path], f"\n{entry},{ENDS[path]}")
        elif path in (INSIGHTS, HANDLERS):
            code = place.read_text(encoding="utf-8") + "\n\n" + code
        else:
            assert not place.exists(), path
        place.write_text(code, encoding="utf-8")


def copy_with_examples(root: Path) -> Path:
    """Copy the runnable part of the repository, add the examples, and return the path of the copy."""
    for folder in ("trainers", "ddp_gui", "assets"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (REPOSITORY / "app.py", *REPOSITORY.glob("docs/glossary.md")):
        (root / file.relative_to(REPOSITORY)).parent.mkdir(exist_ok=True)
        shutil.copy(file, root / file.relative_to(REPOSITORY))
    add_to(root)
    return root
