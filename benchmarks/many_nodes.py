"""What a run of many machines costs its viewers: bytes a second, the server's processor, the page's frames.

    python -m benchmarks.many_nodes [--nodes 64] [--ranks 8] [--seconds 12]

The run is made up: its ranks are simulated, and rank 0's file grows as a real one would. Measured are a
viewer with one machine open, the page with one and with two open, and with all. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

from benchmarks.machine import Conditions, CpuMeter
from benchmarks.made_writer import live_run
from tools import page_driver
from tools.page_driver import Server

STEPS_BEFORE = 10
SETTLE_MS = 8_000
LONG_FRAME_MS = 50
_FRAMES = """async (seconds) => {
  const frames = [];
  let last = performance.now();
  const end = last + 1000 * seconds;
  while (performance.now() < end) {
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""
_OPEN = "(rows, most) => rows.forEach((row, place) => { row.open = place % rows.length < most; })"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8, help="of each machine")
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    print(json.dumps(measure(options.nodes, options.ranks, options.seconds), indent=2))


def measure(num_nodes: int, ranks_a_node: int, seconds: float) -> dict[str, Any]:
    """Return what each of the measurements gave."""
    conditions = Conditions.note()
    shape = ("--nodes", str(num_nodes), "--ranks", str(ranks_a_node))
    with (
        tempfile.TemporaryDirectory() as folder,
        page_driver.serve(Path(folder), page_driver.NO_STANDBY) as server,
        live_run(Path(folder) / "wide", STEPS_BEFORE, *shape) as run,
    ):
        found: dict[str, Any] = {"num_nodes": num_nodes, "ranks_a_node": ranks_a_node}
        found["viewer"] = _stream(server, run.run_id, seconds)
        with page_driver.open_browser() as browser:
            page = page_driver.open_page(browser, f"{server.address}/run?id={run.run_id}")
            found["frames"] = {
                str(num_open): _frames(page, num_open, seconds) for num_open in (1, 2, num_nodes)
            }
    return found | {"conditions": conditions.report()}


def _stream(server: Server, run_id: str, seconds: float) -> dict[str, float]:
    """Follow the run as the page does that has the first machine open."""
    place = urlsplit(server.address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.request("GET", f"/live/runs/{run_id}/stream?nodes=0")
    answer = connection.getresponse()
    first = len(_message(answer))
    meter, began, num_bytes = CpuMeter(server.process.pid), time.monotonic(), 0
    while time.monotonic() - began < seconds:
        num_bytes += len(_message(answer))
    took_s = time.monotonic() - began
    connection.close()
    return {
        "first_message_kb": round(first / 1e3, 1),
        "kb_a_second": round(num_bytes / took_s / 1e3, 1),
        "server_percent": round(meter.percent(), 1),
    }


def _message(answer: http.client.HTTPResponse) -> bytes:
    """Return the next message, whole."""
    lines = b""
    while (line := answer.readline()).strip():
        lines += line
    return lines


def _frames(page: Page, num_open: int, seconds: float) -> dict[str, float]:
    """Return how long the page's frames take with so many machines open in each of its two lists."""
    for rows in (".ddp-devices-list", ".ddp-ranks-list"):
        page.locator(f"{rows} > details.ddp-node").evaluate_all(_OPEN, num_open)
    page.wait_for_timeout(SETTLE_MS)
    frames = sorted(page.evaluate(_FRAMES, seconds))
    return {
        "median_ms": round(frames[len(frames) // 2], 1),
        "p99_ms": round(frames[int(0.99 * len(frames))], 1),
        "longest_ms": round(frames[-1], 1),
        f"num_above_{LONG_FRAME_MS}_ms": sum(frame > LONG_FRAME_MS for frame in frames),
    }


if __name__ == "__main__":
    main()
