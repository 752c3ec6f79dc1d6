"""What the benchmarks know of a run's page: when its loss curve shows, what it shows, what a browser uses."""

from __future__ import annotations

from typing import Any, Final

import psutil
from playwright.sync_api import Browser, CDPSession, Page, ViewportSize

from benchmarks.machine import private_mb

WINDOW: Final[ViewportSize] = {"width": 1440, "height": 900}
LOSS = '[data-chart="loss"]'
PLOT = f"{LOSS} .js-plotly-plot"
READY = "() => (window.ddpDrawLog || []).length > 0"

# Looks at the document before every frame, from its beginning on, and knows nothing of our scripts: notes
# the first frame after the one in which the loss chart had a line of some length.
CURVE_WATCH = """
window.benchCurveMs = null;
(function look() {
  const lines = document.querySelectorAll('[data-chart="loss"] path');
  const isDrawn = [...lines].some((line) => (line.getAttribute("d") ?? "").length > 400);
  if (isDrawn) requestAnimationFrame(() => { window.benchCurveMs = performance.now(); });
  else requestAnimationFrame(look);
})();
"""


def new_page(browser: Browser, script: str = "") -> Page:
    """Return a fresh window of a laptop's size, with a script that runs before the page's own."""
    page = browser.new_page(viewport=WINDOW)
    page.set_default_timeout(120_000)
    if script:
        page.add_init_script(script)
    return page


def open_run(page: Page, address: str, run_id: str) -> None:
    """Open a run's page, wait for its first drawing and bring the charts into sight."""
    page.goto(f"{address}/run?id={run_id}")
    page.wait_for_function(READY)
    page.locator(".ddp-charts").evaluate("(charts) => charts.scrollIntoView()")


def drawn(page: Page) -> list[tuple[int, float]]:
    """Return (cursor, unix time in ms) of everything that a run's page has drawn so far."""
    log = page.evaluate("() => window.ddpDrawLog.map((entry) => [entry.cursor, entry.drawn_unix_ms])")
    return [(int(cursor), float(unix_ms)) for cursor, unix_ms in log]


def shown_range(page: Page) -> tuple[float, float]:
    """Return the steps between which the loss is shown."""
    low, high = page.evaluate(f"() => document.querySelector('{PLOT}').layout.xaxis.range")
    return float(low), float(high)


def drag(page: Page, from_share: float, to_share: float) -> None:
    """Drag the mouse across the loss chart's plot, between two shares of its width."""
    box = page.locator(f"{LOSS} .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + from_share * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + (from_share + to_share) / 2 * box["width"], middle)
    page.mouse.move(box["x"] + to_share * box["width"], middle)
    page.mouse.up()


def renderer_pid(browser: Browser, page: Page) -> int:
    """Return the process that renders a page: the busiest renderer, while the page is kept busy."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    renderers = [int(entry["id"]) for entry in found if entry["type"] == "renderer"]
    before = {pid: sum(psutil.Process(pid).cpu_times()[:2]) for pid in renderers}
    page.evaluate("() => { const end = performance.now() + 400; while (performance.now() < end); }")
    return max(renderers, key=lambda pid: sum(psutil.Process(pid).cpu_times()[:2]) - before[pid])


def memory_mb(browser: Browser, page: Page) -> dict[str, float]:
    """Return what a page holds after a collection of garbage: its heap, and its process's own memory."""
    session: CDPSession = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics: dict[str, Any] = {
        entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]
    }
    session.detach()
    return {
        "js_heap_mb": round(metrics["JSHeapUsedSize"] / 1e6, 1),
        "renderer_private_mb": private_mb(renderer_pid(browser, page)),
    }
