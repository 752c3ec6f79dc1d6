"""The notebooks for Kaggle and Colab: their cells are executed; pip and the installed package are stubs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ddp_gui import notebook

WHEEL = "https://example.org/rankscope-0.1.0-py3-none-any.whl"
NO_ADDRESS = 'WHEEL = ""'


@pytest.fixture
def code_cells(request: pytest.FixtureRequest, repository: Path) -> list[str]:
    """Return the code of a notebook's cells; the parameter is its name."""
    content = json.loads((repository / "notebooks" / f"{request.param}.ipynb").read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and len({cell["id"] for cell in content["cells"]}) == len(
        content["cells"]
    )
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("code_cells", ["kaggle", "colab"], indirect=True)
def test_the_first_cell_installs_the_wheel_next_to_the_torch_that_is_there(
    code_cells: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    package = types.ModuleType("rankscope")
    package.add_to_path = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rankscope", package)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    first = code_cells[0]
    with pytest.raises(SystemExit, match=r"docs/notebooks\.md"):
        exec(first, {})
    assert first.count(NO_ADDRESS) == 1 and commands == []
    exec(first.replace(NO_ADDRESS, f'WHEEL = "{WHEEL}"'), {})
    (command,) = commands
    # An address, because the name could belong to another package in a public index.
    assert command[-1] == f"rankscope[notebook] @ {WHEEL}"
    constraint = Path(command[command.index("--constraint") + 1]).read_text()
    assert constraint == f"torch=={importlib.metadata.version('torch')}\n"


@pytest.mark.parametrize(
    ("code_cells", "called", "values"),
    [
        ("kaggle", "start", {"model": "cnn", "dataset": "fashion_mnist", "gpus": 2}),
        ("colab", "show_page", {}),
    ],
    indirect=["code_cells"],
)
def test_the_second_cell_shows_a_run_or_the_page(
    code_cells: list[str], called: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(notebook, called, lambda **named: calls.append(named))
    assert len(code_cells) == 2
    exec(code_cells[1], {})
    assert calls == [values]
