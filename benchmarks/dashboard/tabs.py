"""Ten tabs of one browser at once: does each load and work, while a run goes on?

A browser gives a host six connections: with a stream a tab the seventh would wait for ever. All tabs begin
to load together, as after a restart of the browser, and stay visible, each a window of its own: the hardest
case, since a hidden tab closes its stream. Works means: the run's newest step is drawn in every tab again
and again, and an endpoint that a click calls answers in every tab.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Error, Page

from benchmarks.dashboard import browsing
from benchmarks.made_writer import live_run
from tools import page_driver

LOAD_TIMEOUT_S = 60.0
WORK_MS = 15_000
ANSWER_TIMEOUT_MS = 10_000

# What a button of the page does; it must not hang because the streams hold all connections.
CLICK = """async ([address, timeout]) => {
  const began = performance.now();
  const response = await fetch(address, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ data: [] }),
    signal: AbortSignal.timeout(timeout),
  });
  return response.ok ? performance.now() - began : null;
}"""


def measure(num_tabs: int, num_steps: int) -> dict[str, Any]:
    """Open so many tabs on one live run of so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        with (
            page_driver.serve(runs_dir) as server,
            live_run(runs_dir / "watched", num_steps) as run,
            page_driver.open_browser() as browser,
        ):
            # One context: the tabs share their connections, as those of one person's browser do.
            context = browser.new_context(viewport=browsing.WINDOW)
            pages = [context.new_page() for _ in range(num_tabs)]
            address = f"{server.address}/run?id={run.run_id}"
            began = time.monotonic()
            for page in pages:
                page.evaluate("(address) => { window.location.href = address; }", address)
            loaded_after_s = [_loaded_after_s(page, began) for page in pages]
            counted = [_num_drawn(page) for page in pages]
            pages[0].wait_for_timeout(WORK_MS)
            drawn = [_num_drawn(page) - before for page, before in zip(pages, counted, strict=True)]
            endpoint = f"{server.address}/gradio_api/run/list_runs"
            answers = [_answered_after_ms(page, endpoint) for page in pages]
    return {
        "tabs": num_tabs,
        "steps": num_steps,
        "loaded_after_s": loaded_after_s,
        "all_loaded": None not in loaded_after_s,
        f"updates_drawn_in_{WORK_MS // 1000}_s": drawn,
        "all_draw": min(drawn) > 0,
        "click_answered_after_ms": answers,
        "all_answer": None not in answers,
    }


def _loaded_after_s(page: Page, began: float) -> float | None:
    """Return when the tab had drawn its first charts; the tabs load while the ones before are waited for."""
    left_s = max(0.1, LOAD_TIMEOUT_S - (time.monotonic() - began))
    try:
        page.wait_for_function(browsing.READY, timeout=left_s * 1000)
    except Error:
        return None
    since_navigation_ms: float = page.evaluate(
        "() => window.ddpDrawLog[0].drawn_unix_ms - performance.timeOrigin"
    )
    return round(since_navigation_ms / 1000, 2)


def _num_drawn(page: Page) -> int:
    return int(page.evaluate("() => (window.ddpDrawLog || []).length"))


def _answered_after_ms(page: Page, endpoint: str) -> int | None:
    try:
        after_ms = page.evaluate(CLICK, [endpoint, ANSWER_TIMEOUT_MS])
    except Error:
        return None
    return None if after_ms is None else round(after_ms)
