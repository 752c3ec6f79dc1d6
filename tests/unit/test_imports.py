"""The wall between the halves, seen in fresh processes: what one import brings with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PAGE_SIDE = ("gradio", "plotly", "ddp_gui", "fastapi", "uvicorn")


def brought_by(module: str, suspects: tuple[str, ...], root: Path) -> set[str]:
    """Return which of the suspects are loaded after importing a module in a new process."""
    code = f"import {module}, sys; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert "trainers" in loaded
    return loaded & set(suspects)


@pytest.mark.parametrize("module", ["config", "events", "rundir", "hardware"])
def test_contract_brings_neither_torch_nor_the_page(module: str, repository: Path) -> None:
    assert brought_by(f"trainers.contract.{module}", ("torch", *PAGE_SIDE), repository) == set()


def test_supervisor_brings_no_torch(repository: Path) -> None:
    """It lives as long as the run: it should cost little memory and hold no GPU."""
    assert brought_by("trainers.supervise", ("torch", *PAGE_SIDE), repository) == set()


@pytest.mark.parametrize("module", ["worker", "loop", "build", "catalog"])
def test_training_brings_nothing_of_the_page(module: str, repository: Path) -> None:
    assert brought_by(f"trainers.{module}", PAGE_SIDE, repository) == set()


def test_check_finds_what_it_looks_for(repository: Path) -> None:
    """A check that always says no would pass above: this one must say yes."""
    assert brought_by("trainers.loop", ("torch",), repository) == {"torch"}
