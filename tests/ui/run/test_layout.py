"""New data does not move anything on a run's page, from its start to its end."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.harness import START_TIMEOUT_S, wait_until
from tests.ui.conftest import PHONE, Start, wait_until_finished
from tools.page_driver import Server

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
BELOW_LIST = """(card) =>
  card.getBoundingClientRect().bottom - card.querySelector("ol").getBoundingClientRect().bottom"""
FIRST_SECOND_MS = 1000.0
MOST_SHIFT = 0.01
MOST_SHIFT_OF_LOADING = 0.05


def test_nothing_moves_from_a_run_s_start_to_its_end(server: Server, page: Page, start: Start) -> None:
    run = start(num_epochs=60)
    page.set_viewport_size(PHONE)
    page.add_init_script(RECORD_SHIFTS)
    wait_until("the ranks being started", run.rank_log(0).exists, START_TIMEOUT_S)
    page.goto(f"{server.address}/run?id={run.run_id}")
    wait_until_finished(run)
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
    assert page.locator(".ddp-tiles").evaluate(TOP) < kept - 60
    page.wait_for_function("() => window.ddpLastDrawn")
    again = page.evaluate("window.shifts")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.locator(".ddp-events").evaluate(BELOW_LIST) < 40, "the card of the events has no blank space"
    assert sum(shift["value"] for shift in again) <= MOST_SHIFT_OF_LOADING, again
