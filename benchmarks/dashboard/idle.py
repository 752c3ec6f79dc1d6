"""What the server costs while next to nothing happens, beside an empty Gradio app.

Both servers run at the same time, each with its page open in a browser, and are measured over the same
seconds: whatever else the machine does meets both alike.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from benchmarks.machine import CpuMeter
from benchmarks.made_writer import live_run
from tools import page_driver
from tools.page_driver import Server

SETTLE_MS = 8_000


def measure(seconds: float, num_steps: int) -> dict[str, Any]:
    """Return the load of both servers with no run, then with a live one of so many steps and one viewer."""
    with (
        tempfile.TemporaryDirectory() as folder,
        page_driver.serve(Path(folder)) as ours,
        _empty_gradio() as empty,
        page_driver.open_browser() as browser,
    ):
        no_run = _side_by_side(browser, ours, ours.address, empty, seconds)
        with live_run(Path(folder) / "watched", num_steps) as run:
            watched = f"{ours.address}/run?id={run.run_id}"
            one_viewer = _side_by_side(browser, ours, watched, empty, seconds)
    return {"watched_s": seconds, "steps": num_steps, "no_run": no_run, "live_run_one_viewer": one_viewer}


def _side_by_side(
    browser: Browser, ours: Server, address: str, empty: Server, seconds: float
) -> dict[str, float]:
    """Open both pages and return what each server used of one core, in percent."""
    pages = [page_driver.open_page(browser, address), page_driver.open_page(browser, empty.address)]
    pages[0].wait_for_timeout(SETTLE_MS)
    our_meter, empty_meter = CpuMeter(ours.process.pid), CpuMeter(empty.process.pid)
    pages[0].wait_for_timeout(seconds * 1000)
    our_percent, empty_percent = our_meter.percent(), empty_meter.percent()
    for page in pages:
        page.close()
    return {
        "server_cpu_percent": our_percent,
        "empty_gradio_cpu_percent": empty_percent,
        "more_percent": round(our_percent - empty_percent, 2),
    }


@contextlib.contextmanager
def _empty_gradio() -> Iterator[Server]:
    port = page_driver.free_port()
    command = [sys.executable, "-m", "benchmarks.empty_gradio", str(port)]
    with page_driver.serve_command(command, port) as served:
        yield served
