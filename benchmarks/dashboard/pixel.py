"""Event to pixel, bytes per update, and whether the user's view survives, at several lengths of a run.

Each turn makes a fresh live run with so many steps behind it (four traces of that length: loss, throughput,
learning rate, gradient norm), opens its page, brings the charts into sight and watches it grow at four
updates a second. The lengths take turns, forwards and backwards, so that a busy minute meets all of them.
A step's latency is from its `time_unix_s`, taken right before it was written, to the animation frame after
the charts were drawn. After the watching the user's view is tried: zoom, pan, a legend entry switched off.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.dashboard import browsing
from benchmarks.dashboard.latency import latencies_ms
from benchmarks.machine import percentile, spread
from benchmarks.made_writer import live_run
from tools import page_driver
from tools.page_driver import Server

WARM_UP_MS = 8_000
UPDATES_TO_SURVIVE = 12


def measure(sizes: Sequence[int], seconds: float, turns: int) -> dict[str, Any]:
    """Watch each length for so many seconds in all, shared among the turns."""
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        with page_driver.serve(runs_dir) as server, page_driver.open_browser() as browser:
            for turn in range(turns):
                for size in sizes if turn % 2 == 0 else list(reversed(sizes)):
                    path = runs_dir / f"steps-{size}-{turn}"
                    found[size].append(_watch(browser, server, path, size, seconds / turns))
    by_size = {str(size): _together(watched) for size, watched in found.items()}
    p95 = [figures["event_to_pixel_ms"]["p95"] for figures in by_size.values()]
    return {"by_steps": by_size, "last_to_first_p95": round(p95[-1] / p95[0], 2)}


def _watch(browser: Browser, server: Server, path: Path, size: int, seconds: float) -> dict[str, Any]:
    """Return what one turn brought: every latency, every update's bytes, and the user's view."""
    with live_run(path, size) as run:
        page = browsing.new_page(browser)
        browsing.open_run(page, server.address, run.run_id)
        page.wait_for_timeout(WARM_UP_MS)
        wire = browsing.WireCounter(page)
        began = time.time()
        page.wait_for_timeout(seconds * 1000)
        until = time.time()
        received, messages = wire.stop()
        page.wait_for_timeout(500)
        log = page.evaluate("() => window.ddpDrawLog")
        updates = [entry["bytes"] for entry in log if began * 1000 <= entry["drawn_unix_ms"] < until * 1000]
        watched = {
            "latencies_ms": latencies_ms(run, browsing.drawn(page), began, until),
            "update_bytes": updates,
            "wire_bytes": received,
            "messages": messages,
            "charts_in_sight": browsing.charts_in_sight(page),
            "survives": _survival(page),
        }
        page.close()
    return watched


def _together(turns: list[dict[str, Any]]) -> dict[str, Any]:
    latencies = [value for turn in turns for value in turn["latencies_ms"]]
    messages = sum(turn["messages"] for turn in turns)
    return {
        "event_to_pixel_ms": spread(latencies),
        "p95_of_each_turn_ms": [round(percentile(turn["latencies_ms"], 0.95), 1) for turn in turns],
        "bytes_per_update": spread([value for turn in turns for value in turn["update_bytes"]], digits=0),
        "wire_bytes_per_message": round(sum(turn["wire_bytes"] for turn in turns) / messages),
        "charts_in_sight": turns[-1]["charts_in_sight"],
        "survives": {name: all(turn["survives"][name] for turn in turns) for name in turns[0]["survives"]},
    }


def _survival(page: Page) -> dict[str, bool]:
    """Zoom, pan and switch a trace off as a user does; tell what still holds some updates later."""
    browsing.drag(page, 0.3, 0.7)
    zoomed = browsing.shown_range(page)
    _await_updates(page)
    zoom = browsing.shown_range(page) == zoomed
    browsing.choose_tool(page, "Pan")
    browsing.drag(page, 0.6, 0.4)
    panned = browsing.shown_range(page)
    has_moved = panned[0] > zoomed[0]
    browsing.switch_trace_off(page)
    _await_updates(page)
    return {
        "zoom": zoom,
        "pan": has_moved and browsing.shown_range(page) == panned,
        "legend": browsing.is_switched_off(page),
    }


def _await_updates(page: Page) -> None:
    cursor = page.evaluate("() => window.ddpDrawLog.at(-1).cursor")
    page.wait_for_function(
        "(cursor) => window.ddpDrawLog.at(-1).cursor >= cursor", arg=cursor + UPDATES_TO_SURVIVE
    )
