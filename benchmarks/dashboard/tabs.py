"""Ten tabs of one browser at once: does each load and work, while a run goes on?

A browser gives a host six connections: with a stream a tab the seventh would wait for ever. All tabs begin
to load together, as after a restart of the browser; then each is brought to the front in turn. It works
when it draws what happened meanwhile, goes on drawing, and an endpoint that a click calls answers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Error, Page

from benchmarks.made_writer import live_run
from tools import page_driver

WAIT_MS = 60_000
WORK_MS = 3_000
ANSWER_TIMEOUT_MS = 10_000

# Notes when the tab came to the front and when the charts were drawn after that.
FRONT_WATCH = """() => {
  const began = performance.now();
  const held = (window.ddpDrawLog || []).at(-1)?.cursor ?? -1;
  window.benchBackMs = null;
  (function look() {
    if (((window.ddpDrawLog || []).at(-1)?.cursor ?? -1) > held) {
      window.benchBackMs = performance.now() - began;
    } else requestAnimationFrame(look);
  })();
}"""
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


# The page with everything it loads at once; the charts of a hidden tab wait until it is seen.
LOADED = "() => performance.getEntriesByType('navigation')[0].loadEventEnd"


def measure(num_tabs: int, num_steps: int) -> dict[str, Any]:
    """Open so many tabs on one live run of so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        with (
            page_driver.serve(runs_dir) as server,
            live_run(runs_dir / "watched", num_steps) as run,
            page_driver.open_person_s_browser() as context,
        ):
            pages = [context.new_page() for _ in range(num_tabs)]
            address = f"{server.address}/run?id={run.run_id}"
            for page in pages:
                page.evaluate("(address) => { window.location.href = address; }", address)
            for page in pages:
                page.wait_for_url("**/run?id=*")
            states = [page.evaluate("() => document.visibilityState") for page in pages]
            assert states.count("visible") == 1, "all tabs but one are hidden"
            tabs = [_use(page, f"{server.address}/gradio_api/run/list_runs") for page in pages]
    return {
        "tabs": num_tabs,
        "steps": num_steps,
        "all_load_and_work": all(tab["works"] for tab in tabs),
        "each": tabs,
    }


def _use(page: Page, endpoint: str) -> dict[str, Any]:
    """Bring a tab to the front, see it draw, and call what a button calls."""
    page.bring_to_front()
    try:
        page.locator(".ddp-run-page, .ddp-loading").first.wait_for(timeout=WAIT_MS)
        page.evaluate(FRONT_WATCH)
        page.wait_for_function("() => window.benchBackMs !== null", timeout=WAIT_MS)
        before = _num_drawn(page)
        page.wait_for_timeout(WORK_MS)
        num_drawn = _num_drawn(page) - before
        answered_ms = page.evaluate(CLICK, [endpoint, ANSWER_TIMEOUT_MS])
    except Error as error:
        return {"works": False, "problem": str(error).splitlines()[0]}
    return {
        "works": num_drawn > 0 and answered_ms is not None,
        "loaded_after_s": round(page.evaluate(LOADED) / 1000, 2),
        "drawn_after_coming_to_the_front_ms": round(page.evaluate("() => window.benchBackMs")),
        f"updates_drawn_in_{WORK_MS // 1000}_s": num_drawn,
        "click_answered_after_ms": None if answered_ms is None else round(answered_ms),
    }


def _num_drawn(page: Page) -> int:
    return int(page.evaluate("() => (window.ddpDrawLog || []).length"))
