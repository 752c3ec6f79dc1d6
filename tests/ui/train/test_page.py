"""The train page in a real browser: the user's clicks and their visible results."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import psutil
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, all_events, processes_of, wait_until
from tests.ui.conftest import Watched, wait_until_in_place
from tools import page_driver
from tools.page_driver import Server
from trainers.contract import config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local import fork_server

LONG = {"dataset": "digits", "model": "mlp", "num_epochs": 100_000, "nproc_per_node": 2}
LOSS_X = """() => {
  const plot = document.querySelector('[data-chart="loss"] .js-plotly-plot');
  const trace = plot && plot.data && plot.data.find(trace => trace.name.startsWith('training'));
  return trace ? Array.from(trace.x) : [];
}"""


def loss_steps(page: Page) -> list[int]:
    """Return the steps that the loss chart has drawn."""
    steps: list[int] = page.evaluate(LOSS_X)
    return steps


def wait_for_points(page: Page, more_than: int) -> None:
    """Wait until the training curve has more points than `more_than`."""
    page.wait_for_function(f"(count) => ({LOSS_X})().length > count", arg=more_than)


def wait_for_state(page: Page, word: str) -> None:
    """Wait until the run page shows this state."""
    expect(page.locator(".ddp-pill")).to_have_text(re.compile(word))


def start_by_endpoint(server: Server, config: dict[str, Any]) -> str:
    """Start a run like a script does."""
    run_id: str = Client(server.address, verbose=False).predict(config, api_name="/start_run")["run_id"]
    return run_id


def open_run(watched: Watched, server: Server, run_id: str) -> Page:
    """Open a run's page and wait for its curve."""
    watched.page.goto(f"{server.address}/run?id={run_id}")
    wait_for_points(watched.page, 5)
    return watched.page


def test_start_watch_checkpoint_reload_stop(server: Server, watched: Watched, runs_dir: Path) -> None:
    page = watched.page
    page.goto(server.address)
    expect(page.locator(".ddp-equation")).to_contain_text("128")
    command = page.locator("#command .cm-content")
    expect(command).to_contain_text("torchrun --rdzv-backend c10d")
    shown_command = command.inner_text()
    assert "--nproc-per-node 2 -m trainers.worker" in shown_command

    before = set(runs_dir.glob("*/config.json"))
    page.get_by_role("button", name="Start").dblclick()
    page.wait_for_url("**/run?id=*")
    wait_for_points(page, 3)
    assert len(set(runs_dir.glob("*/config.json")) - before) == 1, "a double click starts one run"
    run = RunDirectory(runs_dir / page.url.partition("?id=")[2])
    copied = shlex.split(shown_command.replace("\n", ""))
    assert Path(copied[copied.index("trainers.worker") + 1]).parent == runs_dir
    assert config.parse(json.loads(copied[copied.index("--config") + 1])) == run.read_config()
    wait_for_state(page, "running")
    supervisor = psutil.Process(liveness.read_status(run).pid)
    assert ("tests.torch_template" in supervisor.cmdline()) == fork_server.can_fork()
    first = len(loss_steps(page))
    wait_for_points(page, first)

    page.get_by_role("button", name="Checkpoint", exact=True).click()
    wait_until("a checkpoint by the button", lambda: _checkpoint_reasons(run) & {"button"}, ANSWER_TIMEOUT_S)
    page.reload()
    wait_for_points(page, first)
    assert loss_steps(page)[0] == 1, "after a reload the curve begins at the first step"

    page.get_by_role("button", name="Stop", exact=True).click()
    wait_for_state(page, "stopped")
    assert liveness.read_status(run).state == "stopped"
    newest = run.list_checkpoints()[-1]
    assert newest.step == _last_step(run), "Stop saves first"
    # The process that wrote the status ends shortly afterwards.
    wait_until("no process being left", lambda: processes_of(run) == [], ANSWER_TIMEOUT_S)

    page.goto(f"{server.address}/runs")
    row = page.locator(".ddp-list-row", has_text=run.run_id)
    expect(row).to_contain_text("stopped")
    row.get_by_role("link").first.click()
    wait_for_state(page, "stopped")
    assert watched.foreign_requests == []
    assert watched.complaints == []


def test_a_form_that_lost_the_server_for_a_moment_works_again(server: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(server.address)
    expect(page.locator(".ddp-equation")).to_contain_text("128")
    page.route("**/gradio_api/run/**", lambda route: route.abort())
    with page.expect_event("load"):  # Gradio retries until the server responds, then reloads the page
        with page.expect_event("requestfailed"):
            page.get_by_label("Batch per rank", exact=True).fill("32")
        page.unroute("**/gradio_api/run/**")
    page.get_by_label("Batch per rank", exact=True).fill("16")
    expect(page.locator(".ddp-equation")).to_contain_text("32")


def test_resume_from_the_page_goes_on_where_it_stopped(
    server: Server, watched: Watched, runs_dir: Path
) -> None:
    run_id = start_by_endpoint(server, LONG)
    run = RunDirectory(runs_dir / run_id)
    page = open_run(watched, server, run_id)
    page.get_by_role("button", name="Stop", exact=True).press("Enter")
    wait_for_state(page, "stopped")
    stopped_at = _last_step(run)
    resume = page.get_by_role("button", name="Resume", exact=True)
    expect(resume).to_be_focused()  # keyboard users continue with the next action
    resume.press("Enter")
    wait_for_state(page, "running")
    wait_until("steps after the resume", lambda: _last_step(run) > stopped_at + 10, START_TIMEOUT_S)
    steps = [event["step"] for event in all_events(run) if event["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1)), "no step is missing and none is done twice"
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_for_state(page, "paused")
    page.get_by_role("button", name="Resume", exact=True).click()
    wait_for_state(page, "running")


def test_zoom_survives_updates(server: Server, watched: Watched) -> None:
    page = open_run(watched, server, start_by_endpoint(server, LONG))
    plot = "document.querySelector('[data-chart=\"loss\"] .js-plotly-plot')"
    box = wait_until_in_place(page.locator('[data-chart="loss"] .js-plotly-plot .nsewdrag').first)
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    page.mouse.up()
    page.wait_for_function(f"() => {plot}.layout.xaxis.autorange === false")
    zoomed = page.evaluate(f"() => {plot}.layout.xaxis.range.map(Number)")
    drawn = page.evaluate("() => window.ddpDrawLog.length")
    page.wait_for_function("(count) => window.ddpDrawLog.length > count + 10", arg=drawn)
    assert page.evaluate(f"() => {plot}.layout.xaxis.range.map(Number)") == zoomed


def test_killing_the_page_changes_nothing_for_the_run(watched: Watched, tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    with page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server:
        run_id = start_by_endpoint(server, LONG)
        run = RunDirectory(runs_dir / run_id)
        open_run(watched, server, run_id)
        server.process.kill()
        server.process.wait()
        before = _last_step(run)
        wait_until(
            "training going on without the page", lambda: _last_step(run) > before + 20, START_TIMEOUT_S
        )
    with page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server:
        page = open_run(watched, server, run_id)
        assert loss_steps(page)[0] == 1
        assert loss_steps(page)[-1] > before
        page.get_by_role("button", name="Stop", exact=True).click()
        wait_for_state(page, "stopped")


def test_nonsense_is_answered_on_the_page_and_starts_nothing(
    server: Server, watched: Watched, runs_dir: Path
) -> None:
    page = watched.page
    before = runs_in(runs_dir)
    page.goto(server.address)
    page.wait_for_selector(".ddp-equation")
    problem = page.get_by_role("group", name="This cannot be started")
    for label, nonsense, allowed in (
        ("Learning rate", "abc", ": “abc” is not possible. It must be a number above 0"),
        ("Batch per", "0", ": 0 is not possible. It must be a whole number from 1"),
        ("Batch per", "8001", ": 8001 is not possible. It must be at most 4,000"),
        ("ranks|GPUs", "999", ": 999 is not possible. It must be a whole number from 1 to"),
    ):
        field = page.get_by_label(re.compile(label)).first
        good = field.input_value()
        field.fill(nonsense)
        field.blur()
        expect(problem).to_contain_text(allowed)
        expect(field).to_have_attribute("aria-invalid", "true")
        page.get_by_role("button", name="Start").click()
        expect(page.locator(".toast-body", has_text=allowed).first).to_be_visible()
        field.fill(good)
        field.blur()
        expect(page.locator(".ddp-equation")).to_be_visible()
        expect(field).not_to_have_attribute("aria-invalid", "true")
    assert runs_in(runs_dir) == before
    assert page.url.rstrip("/") == server.address


def runs_in(runs_dir: Path) -> set[str]:
    """Return the names of all runs."""
    return {path.name for path in runs_dir.iterdir()} if runs_dir.is_dir() else set()


def _last_step(run: RunDirectory) -> int:
    return max((event["step"] for event in all_events(run) if event["kind"] == "step"), default=0)


def _checkpoint_reasons(run: RunDirectory) -> set[str]:
    return {event["reason"] for event in all_events(run) if event["kind"] == "checkpoint"}


UNCOVERED = """() => {
  const start = document.getElementById("start-button");
  const command = document.getElementById("command").getBoundingClientRect();
  window.scrollBy({ top: command.top - 12, behavior: "instant" });
  const box = start.getBoundingClientRect();
  const at = (x, y) => document.elementFromPoint(box.left + x * box.width, box.top + y * box.height);
  const parts = Array.from({ length: 99 }, (_, index) => (index + 1) / 100);
  return parts.flatMap((x) => [0.2, 0.5].map((y) => at(x, y))).filter((each) => !start.contains(each)).length;
}"""


def test_what_scrolls_below_start_never_covers_it(server: Server, watched: Watched) -> None:
    page = watched.page
    page.set_viewport_size({"width": 1440, "height": 620})
    page.goto(server.address)
    expect(page.locator("#command button").first).to_be_visible()
    assert page.evaluate(UNCOVERED) == 0
