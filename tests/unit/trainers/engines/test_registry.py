"""Tests of the engines that the command line offers: an engine is one folder, and nothing else names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import app
from ddp_gui import options as options_module
from ddp_gui.options import Options
from tests.harness import REPOSITORY
from trainers.engines import base, registry
from trainers.engines.base import EngineKind, EngineOptions, register_engine
from trainers.engines.local.engine import LocalEngine

ONE_USER = "sends every run to the printer of the user who started the page"


class Printer(LocalEngine):
    """Runs on this machine under another name."""

    name = "printer"


@pytest.fixture
def printer(monkeypatch: pytest.MonkeyPatch) -> EngineKind:
    """Register a further engine for one test."""
    monkeypatch.setattr(base, "KINDS", dict(registry.kinds()))
    register_engine(
        "printer",
        label="the printer",
        uses_site=True,
        site_advice='names the printer, such as: queue = "lp0"',
        one_user=ONE_USER,
        is_on_login_node=True,
    )(lambda _options: Printer())
    kinds = dict(base.KINDS)
    monkeypatch.setattr(registry, "kinds", lambda: kinds)
    return kinds["printer"]


def checked(*words: str) -> Options:
    options = app.checked_options(app.parse_options([*words]))
    options_module.check(options)
    return options


def test_the_command_line_offers_and_checks_a_further_engine(
    printer: EngineKind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app.parse_options(["--help"])
    assert "printer: the printer" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(
        ValueError, match=r"needs --site FILE, whose table \[printer\] names the printer, such"
    ):
        checked("--engine", "printer")
    site = tmp_path / "site.toml"
    site.touch()
    served = ("--engine", "printer", "--site", str(site))
    assert checked(*served).engine == "printer"
    with pytest.raises(ValueError, match=f"--engine printer {ONE_USER}"):
        checked(*served, "--insecure")
    with pytest.raises(ValueError, match="add --engine slurm or --engine ssh or --engine printer, or"):
        checked("--site", str(site))
    assert app._login_node_options(app.parse_options(["--ssh", "hpc", *served]))[:2] == [
        "--engine",
        "printer",
    ]
    made = printer.create(EngineOptions(runs_dir=tmp_path))
    assert made.name == "printer" and not made.queue()
    with pytest.raises(ValueError, match="engine is 'printer', but an engine of this name is already"):
        register_engine("printer", label=printer.label)(printer.create)


@pytest.mark.slow
def test_engines_of_this_project_register_themselves_without_torch() -> None:
    code = (
        "import sys; from trainers.engines import registry; print(*registry.kinds(), 'torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, check=True)
    assert printed.stdout.split() == [b"local", b"slurm", b"ssh", b"False"]
