"""What the benchmarks know of a run's page: when its loss curve shows, what it shows, what a browser uses."""

from __future__ import annotations

from typing import Any, Final

import psutil
from playwright.sync_api import Browser, CDPSession, Page, ViewportSize

from benchmarks.machine import private_mb
from tools.page_driver import TIMES_FRAMES

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
    page.add_init_script(TIMES_FRAMES)
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


def choose_tool(page: Page, title: str) -> None:
    """Press a button of the loss chart's bar of tools."""
    page.locator(PLOT).hover()
    page.locator(f'{PLOT} [data-title="{title}"]').click()


def switch_trace_off(page: Page) -> None:
    """Click on the first entry of the loss chart's legend."""
    page.locator(f"{PLOT} .legendtoggle").first.click()
    page.wait_for_function(f"() => document.querySelector('{PLOT}').data[0].visible === 'legendonly'")


def is_switched_off(page: Page) -> bool:
    """Tell whether the trace of the legend's first entry is still not shown."""
    return bool(page.evaluate(f"() => document.querySelector('{PLOT}').data[0].visible === 'legendonly'"))


def charts_in_sight(page: Page) -> dict[str, int]:
    """Return the number of drawn traces of each chart that the window shows, wholly or in part."""
    found: dict[str, int] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("[data-chart]")]
          .filter((chart) => chart.getBoundingClientRect().top < innerHeight
            && chart.getBoundingClientRect().bottom > 0)
          .map((chart) => [
            chart.dataset.chart, chart.querySelector(".js-plotly-plot")?.data?.length ?? 0]))"""
    )
    return found


class WireCounter:
    """Counts what a page receives from the server, by the browser's own book-keeping."""

    def __init__(self, page: Page) -> None:
        self._received = 0
        self._messages = 0
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.on("Network.dataReceived", self._take)
        self._session.on("Network.eventSourceMessageReceived", self._count)
        self._session.send("Network.enable")

    def stop(self) -> tuple[int, int]:
        """Return the bytes and the messages since the beginning."""
        self._session.detach()
        return self._received, self._messages

    def _take(self, event: dict[str, Any]) -> None:
        self._received += event["dataLength"]

    def _count(self, _event: dict[str, Any]) -> None:
        self._messages += 1


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
