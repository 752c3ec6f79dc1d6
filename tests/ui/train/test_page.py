"""The train page in a real browser: the user's clicks and their visible results."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, all_events, processes_of, wait_until
from tests.ui.conftest import Watched, drag_over
from tools.page_driver import Server
from trainers.contract import config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local import torchrun

PLOT = "document.querySelector('[data-chart=\"loss\"] .js-plotly-plot')"
LOSS_X = f"""() => {{
  const trace = {PLOT}?.data?.find(trace => trace.name.startsWith('training'));
  return trace ? Array.from(trace.x) : [];
}}"""


def loss_steps(page: Page) -> list[int]:
    steps: list[int] = page.evaluate(LOSS_X)
    return steps


def wait_for_points(page: Page, more_than: int) -> None:
    page.wait_for_function(f"(count) => ({LOSS_X})().length > count", arg=more_than)


def wait_for_state(page: Page, word: str) -> None:
    expect(page.locator(".ddp-pill")).to_have_text(re.compile(word))


def test_start_watch_checkpoint_reload_stop(server: Server, page: Page, runs_dir: Path) -> None:
    page.goto(server.address)
    expect(page.locator(".ddp-equation")).to_contain_text("128")
    command = page.locator("#command .cm-content")
    expect(command).to_contain_text("torchrun --rdzv-backend c10d")
    epochs = page.locator("#field-num_epochs input")
    epochs.fill("1000")  # it does not end during the test
    epochs.blur()
    expect(command).to_contain_text('"num_epochs": 1000')
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
    assert ("tests.torch_template" in supervisor.cmdline()) == torchrun.can_fork()
    first = len(loss_steps(page))
    see_a_zoom_survive_updates(page)

    page.get_by_role("button", name="Checkpoint", exact=True).click()
    wait_until("a checkpoint by the button", lambda: _checkpoint_reasons(run) & {"button"}, ANSWER_TIMEOUT_S)
    page.reload()
    wait_for_points(page, first)
    assert loss_steps(page)[0] == 1, "after a reload the curve begins at the first step"

    page.get_by_role("button", name="Stop", exact=True).press("Enter")
    wait_for_state(page, "stopped")
    assert liveness.read_status(run).state == "stopped"
    stopped_at = _last_step(run)
    assert run.list_checkpoints()[-1].step == stopped_at, "Stop saves first"
    # The process that wrote the status ends shortly afterwards.
    wait_until("no process being left", lambda: processes_of(run) == [], ANSWER_TIMEOUT_S)

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
    page.goto(f"{server.address}/runs")
    row = page.locator(".ddp-list-row", has_text=run.run_id)
    expect(row).to_contain_text("running")
    row.get_by_role("link").first.click()
    wait_for_state(page, "running")


def see_a_zoom_survive_updates(page: Page) -> None:
    """Zoom the chart of a live run, and check that later points do not undo it."""
    drag_over(page.locator('[data-chart="loss"] .js-plotly-plot .nsewdrag').first)
    page.wait_for_function(f"() => {PLOT}.layout.xaxis.autorange === false")
    zoomed = page.evaluate(f"() => {PLOT}.layout.xaxis.range.map(Number)")
    drawn = page.evaluate("() => window.ddpDrawLog.length")
    page.wait_for_function("(count) => window.ddpDrawLog.length > count + 10", arg=drawn)
    assert page.evaluate(f"() => {PLOT}.layout.xaxis.range.map(Number)") == zoomed


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
    watched.complaints.clear()  # the browser logs the lost requests


@pytest.mark.parametrize(
    ("label", "nonsense", "allowed"),
    [
        ("Learning rate", "abc", ": “abc” is not possible. Allowed: a number above 0"),
        ("Batch per", "8001", ": 8001 is not possible. Allowed: at most 4,000"),
    ],
)
def test_nonsense_is_answered_on_the_page_and_starts_nothing(
    server: Server, watched: Watched, runs_dir: Path, label: str, nonsense: str, allowed: str
) -> None:
    page, before = watched.page, runs_in(runs_dir)
    page.goto(server.address)
    page.wait_for_selector(".ddp-equation")
    field = page.get_by_label(re.compile(label)).first
    good = field.input_value()
    field.fill(nonsense)
    field.blur()
    expect(page.get_by_role("group", name="This cannot be started")).to_contain_text(allowed)
    expect(field).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".toast-body", has_text=allowed).first).to_be_visible()
    watched.complaints.clear()  # the browser logs the refusal
    field.fill(good)
    field.blur()
    expect(page.locator(".ddp-equation")).to_be_visible()
    expect(field).not_to_have_attribute("aria-invalid", "true")
    assert runs_in(runs_dir) == before
    assert page.url.rstrip("/") == server.address


def runs_in(runs_dir: Path) -> set[str]:
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


def test_the_tour_shows_what_it_describes_and_is_gone_for_good(server: Server, watched: Watched) -> None:
    """On a phone, the tour takes at most a third of the height."""
    page, size = watched.page, (390, 844)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(server.address)
    tour = page.get_by_role("region", name="A short tour")
    words = ""

    def is_in_sight() -> bool:
        """Return True if the tour covers nothing of the target that fits above it."""
        box, target = tour.bounding_box(), page.locator(".ddp-tour-target").bounding_box()
        assert box and target
        seen = min(target["y"] + target["height"], box["y"]) - max(target["y"], 0)
        return bool(seen >= min(target["height"], box["y"] - 20) - 1)

    for number in range(1, 6):
        expect(tour).to_contain_text(f"{number} of 5")
        words += tour.inner_text()
        box = tour.bounding_box()
        assert box and box["height"] <= size[1] / 3, box
        # The page is still scrolling to it.
        wait_until(f"target {number} in sight", is_in_sight, ANSWER_TIMEOUT_S)
        tour.get_by_role("button", name="Done" if number == 5 else "Next").click()
    assert "Learn" in words
    expect(tour).to_be_hidden()
    page.set_viewport_size({"width": 1440, "height": 620})
    page.reload()
    page.wait_for_selector(".ddp-equation")
    expect(tour).to_be_hidden()
    expect(page.locator("#command button").first).to_be_visible()
    assert page.evaluate(UNCOVERED) == 0, "what scrolls below Start never covers it"
    page.get_by_role("button", name="Show the tour").click()
    expect(tour).to_contain_text("1 of 5")
    page.keyboard.press("Tab")
    tour.get_by_role("button", name="Close").click()
    expect(tour).to_be_hidden()
