"""The run's picture for a notebook, and its table without anywidget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events.run_view import RunView
from ddp_gui.notebook import live
from ddp_gui.notebook.runs import PageSession
from ddp_gui.queue.scheduler import Scheduler
from tests import made_run
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import PLUGINS_VARIABLE, own_plugins


class Finished:
    """A run that has only what a picture needs."""

    def __init__(self, path: Path, num_steps: int) -> None:
        run = RunDirectory(path)
        made_run.make_finished(run, num_steps, num_ranks=4)
        self.run_id = run.run_id
        self._view = RunView(run, None)

    def view(self) -> Any:
        self._view.catch_up()
        return self._view


def test_the_table_shows_the_ranks_and_escapes_all_text(tmp_path: Path) -> None:
    run = Finished(tmp_path / "run-1", 100)
    table = live.as_html(run)
    assert "100 of" in table and table.count("<tr>") >= 7 and "anywidget" in table
    run.view().series.problem = {"message": "<script>alert(1)</script>"}
    table = live.as_html(run)
    assert "<script>" not in table and "&lt;script&gt;" in table


def test_runs_of_a_notebook_have_its_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    monkeypatch.setattr(Scheduler, "begin", lambda _self: None)
    (tmp_path / "plugins" / "models").mkdir(parents=True)
    PageSession(tmp_path / "runs")
    assert own_plugins() == tmp_path / "plugins"
    PageSession(tmp_path / "elsewhere" / "runs")
    assert own_plugins() == tmp_path / "plugins", "the runs of both inherit one environment"
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    (tmp_path / "plugins" / "models" / "mine.py").touch()
    (tmp_path / "plugins" / "models" / "mine.py").chmod(0o666)
    with pytest.raises(ValueError, match=r"every user of this machine can change .*mine\.py"):
        PageSession(tmp_path / "runs")
