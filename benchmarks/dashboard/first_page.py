"""How long it takes until the first page can be used, with an empty browser cache and with a warm one.

It can be used in the frame in which Start is enabled and the equation is shown, counted from the start of
the navigation. The server has been up and has been asked once before: its own start is measured elsewhere.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext

from benchmarks.dashboard.browsing import WINDOW
from benchmarks.machine import spread
from tools import page_driver

USABLE_WATCH = """
window.benchUsableMs = null;
(function look() {
  const start = document.querySelector("#start-button");
  const equation = document.querySelector(".ddp-equation b");
  if (start && !start.disabled && start.offsetHeight > 0 && equation?.textContent) {
    requestAnimationFrame(() => { window.benchUsableMs = performance.now(); });
  } else requestAnimationFrame(look);
})();
"""


def measure(times: int) -> dict[str, Any]:
    """Open the page so many times in fresh browser profiles, each time twice."""
    cold, warm = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        page_driver.serve(Path(folder)) as server,
        page_driver.open_browser() as browser,
    ):
        _open(browser.new_context(viewport=WINDOW), server.address)
        for _ in range(times):
            context = browser.new_context(viewport=WINDOW)
            cold.append(_open(context, server.address))
            warm.append(_open(context, server.address))
            context.close()
    return {"usable_after_ms": {"empty_cache": spread(cold, 0), "warm_cache": spread(warm, 0)}}


def _open(context: BrowserContext, address: str) -> float:
    page = context.new_page()
    page.add_init_script(USABLE_WATCH)
    page.goto(address)
    page.wait_for_function("() => window.benchUsableMs !== null", timeout=60_000)
    usable_ms = float(page.evaluate("() => window.benchUsableMs"))
    page.close()
    return usable_ms
