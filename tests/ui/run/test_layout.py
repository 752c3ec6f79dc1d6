"""New data does not move anything on a run's page, and its tiles match the events."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from statistics import mean, median

import pytest
from gradio_client import Client
from playwright.sync_api import expect

from tests.harness import END_TIMEOUT_S, START_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

# Shifts within half a second of a click are excluded: the user caused them.
RECORD_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { value, startTime, hadRecentInput, sources } of list.getEntries()) {
    const moved = sources.map(({ node }) => node?.className ?? node?.nodeName ?? "").join(" ");
    if (!hadRecentInput) window.shifts.push({ value, startTime, moved });
  }
}).observe({ type: "layout-shift", buffered: true });
"""
TOP = "(element) => element.getBoundingClientRect().top"
FIRST_SECOND_MS = 1000.0
MOST_SHIFT = 0.01
MOST_SHIFT_OF_LOADING = 0.05


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)], ids=["desk", "phone"])
def test_nothing_moves_from_the_first_second_to_the_end_of_a_run(
    size: tuple[int, int], server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    page = watched.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.add_init_script(RECORD_SHIFTS)
    config = {"dataset": "digits", "model": "mlp", "device": "cpu", "num_epochs": 60, "batch_size": 32}
    run_id = client.predict(config, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    wait_until("the ranks being started", run.rank_log(0).exists, START_TIMEOUT_S)
    page.goto(f"{server.address}/run?id={run_id}")
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    expect(page.locator(".ddp-pill")).to_have_text("finished")
    expect(page.locator(".ddp-judgement")).to_have_attribute("data-code", re.compile("learnt|memor|improv"))
    shifts = page.evaluate("window.shifts")
    loading = [shift for shift in shifts if shift["startTime"] <= FIRST_SECOND_MS]
    later = [shift for shift in shifts if shift["startTime"] > FIRST_SECOND_MS]
    assert sum(shift["value"] for shift in loading) <= MOST_SHIFT_OF_LOADING, loading
    assert sum(shift["value"] for shift in later) <= MOST_SHIFT, str(later)
    # A slow server shows a notice, which must not take up space.
    notes = page.locator(".ddp-run-page > .ddp-connection")
    top = page.locator(".ddp-title").evaluate(TOP)
    notes.evaluate_all(
        "(notes) => notes.forEach((note) => { note.textContent = 'Trying again'; note.hidden = false; })"
    )
    expect(notes.first).to_be_visible()
    assert page.locator(".ddp-title").evaluate(TOP) == top

    # The page of a finished run reserves no space for new messages, and does not shift while loading.
    kept = page.locator(".ddp-tiles").evaluate(TOP)
    page.reload()
    expect(page.locator(".ddp-judgement")).to_have_attribute("data-code", re.compile("learnt|memor|improv"))
    assert page.locator(".ddp-tiles").evaluate(TOP) < kept - (60 if size[0] < 700 else -1)
    page.wait_for_function("() => window.ddpLastDrawn")
    again = page.evaluate("window.shifts")
    assert sum(shift["value"] for shift in again) <= MOST_SHIFT_OF_LOADING, again


def test_the_tiles_of_an_ended_run_are_median_and_mean_of_its_whole_steps(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    config = {"dataset": "fashion_mnist", "model": "mlp", "device": "cpu", "max_steps": 200, "batch_size": 64}
    run_id = client.predict(config, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    found = all_events(run)
    plan = next(event for event in found if event["kind"] == "plan")
    steps = [event for event in found if event["kind"] == "step"]
    whole = [now["step_time_s"] for now, after in itertools.pairwise(steps) if now["epoch"] == after["epoch"]]
    assert plan["num_train"] % plan["global_batch"], "the last batch of an epoch is cut"

    page = watched.page
    page.goto(f"{server.address}/run?id={run_id}")
    tiles = page.locator(".ddp-tile")
    expect(tiles.nth(3)).to_contain_text(f"median of {len(whole)} steps")
    shown_s = seconds(tiles.nth(3).locator(".ddp-tile-value").inner_text())
    per_s = float(tiles.nth(2).locator(".ddp-tile-value").inner_text().replace(",", ""))
    assert shown_s == pytest.approx(median(whole), rel=0.01)
    assert shown_s * per_s == pytest.approx(plan["global_batch"], rel=0.02)
    (mean_words,) = re.findall(r"; mean (.+)", tiles.nth(3).inner_text())
    assert seconds(mean_words) == pytest.approx(mean(whole), rel=0.01)
    assert watched.complaints == []


def seconds(words: str) -> float:
    """Parse a duration in the page's format."""
    number, unit = words.split()
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
