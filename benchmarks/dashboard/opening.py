"""Opening a finished run of a million steps: until the curve shows, what it costs, and zooming into it.

Three openings: the server's first look at the run, in a browser that comes from the list of runs (so that it
has our scripts already); the same once more; and in a browser that has nothing. The curve counts as shown in
the frame after the loss chart's line is in the document; the time is from the start of the navigation.
Memory of the page: the JavaScript heap after a collection, and the private memory of the process that
renders it (USS).
"""

from __future__ import annotations

import tempfile
from array import array
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

from benchmarks.dashboard import browsing
from benchmarks.machine import resident_mb
from benchmarks.made_writer import finished_run
from tools import page_driver
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory

DETAIL_STEPS = 1_900
NUM_ZOOMS = 3
SETTLE_MS = 3_000
GIVEN_BACK_AFTER_S = 120

# Notes when the button of the mouse was let go, and the frame after the one in which each point of the file
# between the shown steps was on the chart, as exactly as a screen can show it.
DETAIL_WATCH = """([selector, width, first, losses]) => {
  window.benchReleasedMs = window.benchDetailMs = null;
  addEventListener("mouseup", () => { window.benchReleasedMs ??= performance.now(); }, { capture: true });
  const plot = document.querySelector(selector);
  const isExact = () => {
    const [low, high] = plot.layout.xaxis.range;
    if (high - low > width) return false;
    const { x, y } = plot.data[0];
    const start = Math.max(first, Math.ceil(low));
    const at = x.indexOf(start);
    for (let step = start; at >= 0 && step <= high && step - first < losses.length; step += 1) {
      const [shown, loss] = [y[at + step - start], losses[step - first]];
      if (x[at + step - start] !== step || Math.abs(shown - loss) > 1e-4 * Math.abs(loss)) return false;
    }
    return at >= 0;
  };
  (function look() {
    if (isExact()) requestAnimationFrame(() => { window.benchDetailMs = performance.now(); });
    else requestAnimationFrame(look);
  })();
}"""


def measure(num_steps: int) -> dict[str, Any]:
    """Return the figures of a run with so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        run = finished_run(runs_dir / "finished", num_steps)
        losses = array("d", (e["loss"] for e in events.read_all(run.events) if e["kind"] == "step"))
        with page_driver.open_browser() as browser, page_driver.serve(runs_dir) as server:
            used = browser.new_context(viewport=browsing.WINDOW)
            used.new_page().goto(f"{server.address}/runs")
            used.pages[0].locator("h1").first.wait_for()
            used.pages[0].wait_for_timeout(SETTLE_MS)
            before_mb = resident_mb(server.process.pid)
            first_look = _open(browser, used, server, run)
            during_mb = resident_mb(server.process.pid)
            again = _open(browser, used, server, run, losses)
            used.close()
            bare = _open(browser, browser.new_context(viewport=browsing.WINDOW), server, run)
            waiting = browser.new_page()
            waiting.wait_for_timeout(GIVEN_BACK_AFTER_S * 1000)
            after_mb = resident_mb(server.process.pid)
        events_mb = round(run.events.stat().st_size / 1e6, 1)
    return {
        "steps": num_steps,
        "events_mb": events_mb,
        "first_look": first_look,
        "again": again,
        "again_with_empty_browser_cache": bare,
        "server_resident_mb": {
            "before": before_mb,
            "with_the_run": during_mb,
            "for_the_run": round(during_mb - before_mb, 1),
            f"{GIVEN_BACK_AFTER_S}_s_after_the_last_look": after_mb,
        },
    }


def _open(
    browser: Browser,
    context: BrowserContext,
    server: Server,
    run: RunDirectory,
    losses: array[float] | None = None,
) -> dict[str, Any]:
    """Open the run in a new window, look at its memory and, where the losses are given, zoom into it."""
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.add_init_script(browsing.CURVE_WATCH)
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.wait_for_function("() => window.benchCurveMs !== null")
    figures: dict[str, Any] = {"curve_after_ms": round(page.evaluate("() => window.benchCurveMs"))}
    page.wait_for_timeout(SETTLE_MS)
    figures |= browsing.memory_mb(browser, page)
    if losses is not None:
        page.locator(".ddp-charts").evaluate("(charts) => charts.scrollIntoView()")
        figures["zooms"] = [_zoom(page, losses, left) for left in range(NUM_ZOOMS, 0, -1)]
        figures |= {f"zoomed_{name}": value for name, value in browsing.memory_mb(browser, page).items()}
    page.close()
    return figures


def _zoom(page: Page, losses: array[float], zooms_left: int) -> dict[str, Any]:
    """Zoom in by mouse; with the last zoom, to about `DETAIL_STEPS`, the points are compared."""
    low, high = browsing.shown_range(page)
    share = (DETAIL_STEPS / (high - low)) ** (1 / zooms_left)
    is_last = zooms_left == 1
    if is_last:
        first = max(1, int(low))
        truth = losses[first - 1 : int(high)].tolist()
        page.evaluate(DETAIL_WATCH, [browsing.PLOT, 1.1 * DETAIL_STEPS, first, truth])
    browsing.drag(page, 0.5 - share / 2, 0.5 + share / 2)
    if is_last:
        page.wait_for_function("() => window.benchDetailMs !== null")
    else:
        page.wait_for_timeout(SETTLE_MS)
    low, high = browsing.shown_range(page)
    zoom: dict[str, Any] = {"shown_steps": round(high - low)}
    if is_last:
        after_ms = page.evaluate("() => window.benchDetailMs - window.benchReleasedMs")
        zoom["every_point_shown_after_ms"] = round(after_ms)
    return zoom
