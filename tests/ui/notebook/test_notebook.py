"""A run inside a notebook of JupyterLab: live view, buttons, a busy and a restarted kernel."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.ui.conftest import NewPage
from tests.ui.notebook.jupyter import Jupyter, run_cell
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

NAME = "<img src=x onerror=document.title=1>"
START = f"""\
from ddp_gui.notebook import start
run = start(model="mlp", gpus=2, num_epochs=10_000, name={NAME!r}, runs_dir={{runs!r}})
run"""
THREADS = 'import threading; [thread.name for thread in threading.enumerate() if "live-" in thread.name]'


def drawn(view: Locator) -> str:
    return view.locator("path.ddp-notebook-loss").get_attribute("d") or ""


def test_a_run_is_watched_and_stopped_inside_the_notebook(
    jupyterlab: Jupyter, new_page: NewPage, runs_dir: Path
) -> None:
    page = new_page()
    cells = jupyterlab.open_notebook(page, START.format(runs=str(runs_dir)), "run.wait()", THREADS)
    run_cell(cells[0])
    view = cells[0].locator(".ddp-notebook")
    expect(view.locator(".ddp-pill")).to_have_text("running")
    expect(view.locator("header strong")).to_have_text(NAME)  # text, not an image
    expect(view.locator(".ddp-ranks-list li")).to_have_count(2)
    expect(view.locator(".ddp-device")).to_have_count(2)
    before = wait_until("the first points", lambda: drawn(view), ANSWER_TIMEOUT_S)
    wait_until("the loss moving", lambda: drawn(view) not in ("", before), ANSWER_TIMEOUT_S)
    # While a cell runs, a button waits for its end, and the view says so.
    run_cell(cells[1])
    expect(cells[1].locator(".jp-InputPrompt")).to_have_text("[*]:")
    view.get_by_role("button", name="Checkpoint").click()
    expect(view.locator(".ddp-notebook-silence")).to_contain_text(
        "Checkpoint takes effect when the cell ends"
    )
    jupyterlab.tell_kernel("interrupt")
    expect(view.locator(".ddp-notebook-words")).to_have_text("Saving a checkpoint.")
    (run,) = [RunDirectory(path) for path in runs_dir.iterdir() if (path / "config.json").is_file()]
    wait_until("the checkpoint", run.list_checkpoints, ANSWER_TIMEOUT_S)
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".ddp-pill")).to_have_text("stopped")
    run_cell(cells[1])
    expect(cells[1].locator(".jp-OutputArea-output")).to_have_text("'stopped'")
    for name in ("Stop", "Checkpoint"):
        expect(view.get_by_role("button", name=name)).to_be_disabled()
    run_cell(cells[2])
    expect(cells[2].locator(".jp-OutputArea-output")).to_have_text("[]")  # no thread updates it any more
    assert page.title() != "1"


def test_after_a_restart_of_the_kernel_the_view_says_how_to_show_the_run_again(
    jupyterlab: Jupyter, new_page: NewPage, runs_dir: Path
) -> None:
    known = set(runs_dir.iterdir()) if runs_dir.is_dir() else set()
    again = "from ddp_gui.notebook import open_run; run = open_run({name!r}, {runs!r}); run"
    cells = jupyterlab.open_notebook(new_page(), START.format(runs=str(runs_dir)), "")
    run_cell(cells[0])
    view = cells[0].locator(".ddp-notebook")
    expect(view.locator(".ddp-pill")).to_have_text("running")
    (path,) = [path for path in set(runs_dir.iterdir()) - known if (path / "config.json").is_file()]
    jupyterlab.tell_kernel("restart")
    silence = view.locator(".ddp-notebook-silence")
    expect(silence).to_contain_text(f'open_run("{path.name}")')
    expect(view.get_by_role("button", name="Stop")).to_be_disabled()
    assert liveness.read_status(RunDirectory(path)).state == "running"
    cells[1].locator(".cm-content").fill(again.format(name=path.name, runs=str(runs_dir)))
    run_cell(cells[1])
    view = cells[1].locator(".ddp-notebook")
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".ddp-pill")).to_have_text("stopped")
