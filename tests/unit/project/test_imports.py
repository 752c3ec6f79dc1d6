"""Import boundaries between GUI and training, in fresh processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import pytest

from tests.harness import REPOSITORY

PAGE_SIDE = ("gradio", "plotly", "ddp_gui", "fastapi", "uvicorn")


def brought_by(module: str, suspects: tuple[str, ...], root: Path) -> set[str]:
    """Return the suspects that are loaded after importing a module in a new process."""
    code = f"import {module}, sys; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert "trainers" in loaded
    return loaded & set(suspects)


@pytest.mark.parametrize(
    "module", ["contract.config", "contract.events", "contract.rundir", "engines.local.supervisor"]
)
def test_contract_and_supervisor_bring_neither_torch_nor_the_page(module: str, repository: Path) -> None:
    """The supervisor lives as long as the run, so it must use little memory and no GPU."""
    assert brought_by(f"trainers.{module}", ("torch", *PAGE_SIDE), repository) == set()


@pytest.mark.parametrize("module", ["app", "ddp_gui.options"])
def test_the_first_line_is_printed_before_anything_large_is_imported(module: str, repository: Path) -> None:
    """Gradio reads GRADIO_TEMP_DIR at import, so app.py must set it before."""
    large = ("torch", "gradio", "fastapi", "starlette", "pandas", "numpy", "plotly")
    assert brought_by(module, large, repository) == set()


@pytest.mark.slow
def test_page_brings_no_torch(repository: Path) -> None:
    assert brought_by("ddp_gui.server", ("torch",), repository) == set()


@pytest.mark.parametrize("module", ["worker", "plugins.catalog"])
@pytest.mark.slow
def test_training_brings_nothing_of_the_page(module: str, repository: Path) -> None:
    assert brought_by(f"trainers.{module}", PAGE_SIDE, repository) == set()


def test_the_bundled_plotly_js_is_the_version_of_the_installed_package() -> None:
    """The browser gets the small bundle, which must have the version of the Python package."""
    ours = (REPOSITORY / "assets" / "vendor" / "plotly-basic.min.js").read_text(encoding="utf-8")[:200]
    theirs = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")[:200]
    versions = [re.search(r"plotly\.js.* v(\d+\.\d+\.\d+)", text) for text in (ours, theirs)]
    assert versions[0] is not None and versions[1] is not None
    assert versions[0][1] == versions[1][1]


# The class of each tracker's module, and of notebooks.
SHARED_NAMES = {"Run"}


def test_a_public_class_has_its_name_to_itself(repository: Path) -> None:
    places = defaultdict(list)
    for folder in ("ddp_gui", "trainers", "rankscope"):
        for path in (repository / folder).glob("**/*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(repository)))
    assert len(places) > 500
    several = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert several.keys() == SHARED_NAMES, several
