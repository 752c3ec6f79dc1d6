"""Structure of the repository: folders, module names, and the formatting of numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("ddp_gui", "trainers", "tests/unit", "tests/ui")
MODULES = dict.fromkeys(PACKAGES, "py") | {"assets/js": "js", "assets/css": "css"}
PLUG_INS = {
    "trainers/models",
    "trainers/datasets",
    "trainers/strategies",
    "trainers/tasks",
    "trainers/mistakes",
}


def folders(repository: Path) -> dict[str, list[str]]:
    """Return the modules of each folder."""
    found: dict[str, list[str]] = {}
    for top, ending in MODULES.items():
        for module in sorted((repository / top).rglob(f"*.{ending}")):
            if module.name != "__init__.py":
                found.setdefault(module.parent.relative_to(repository).as_posix(), []).append(module.stem)
    return found


def test_every_folder_says_what_is_in_it(repository: Path) -> None:
    for name in folders(repository):
        if not name.startswith(PACKAGES):
            continue
        words = (repository / name / "__init__.py").read_text(encoding="utf-8")
        assert words.startswith('"""') and len(words.splitlines()[0]) > 20, name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_called_like_another_of_its_folder(package: str, repository: Path) -> None:
    """`trainers/data.py` next to `trainers/data/` would be ambiguous."""
    for module in (repository / package).rglob("*.py"):
        assert not module.with_suffix("").is_dir(), module


def test_unit_tests_lie_in_the_folders_of_what_they_test(repository: Path) -> None:
    unit = repository / "tests" / "unit"
    for package in ("ddp_gui", "trainers"):
        tests_of = {folder for folder in (unit / package).rglob("*/") if any(folder.glob("test_*.py"))}
        assert len(tests_of) > 10
        strays = {folder for folder in tests_of if not (repository / folder.relative_to(unit)).is_dir()}
        assert not strays


def test_numbers_for_people_are_written_in_one_place(repository: Path) -> None:
    """`assets/js/shared/format.js` adds the thousands separators."""
    scripts = (repository / "assets" / "js").rglob("*.js")
    writers = {path.name for path in scripts if ".toLocaleString(" in path.read_text(encoding="utf-8")}
    assert writers == {"format.js"}


# Expressions that are texts, and one in a file for another program.
NO_STEP_NUMBERS = {"when", "tenths[lowest]", "tenths[-1]", "markup.count(best['step'])", "step['step']"}


def test_a_step_number_in_a_sentence_has_separators_for_thousands(repository: Path) -> None:
    """Otherwise "step 1210" appears next to "1,210"; log lines have no separators."""
    plain = [
        f"{path.relative_to(repository)}: {found}"
        for package in ("ddp_gui", "trainers")
        for path in (repository / package).rglob("*.py")
        for found in plain_step_numbers(ast.parse(path.read_text(encoding="utf-8")))
    ]
    written = re.compile(r"steps? \$\{(?!count\(|which)[^}]*\}", re.IGNORECASE)
    plain += [
        f"{path.relative_to(repository)}: {found}"
        for path in (repository / "assets" / "js").rglob("*.js")
        for found in written.findall(path.read_text(encoding="utf-8"))
    ]
    assert plain == []


def plain_step_numbers(tree: ast.Module) -> Iterator[str]:
    """Yield the expressions that f-strings show after "step " without a format."""
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        for before, shown in zip(text.values, text.values[1:], strict=False):
            is_number = isinstance(before, ast.Constant) and re.search(r"\bsteps? $", str(before.value), re.I)
            if is_number and isinstance(shown, ast.FormattedValue) and shown.format_spec is None:
                expression = ast.unparse(shown.value)
                if expression not in NO_STEP_NUMBERS:
                    yield expression
