"""Delays that a user sees: click to first point, event to pixel, bytes per update, and the result.

    python -m benchmarks.watch [--seconds 60] [--config '{"dataset": "austen", "model": "gpt"}']

Presses Start in a real Chromium, watches for the given time and prints one JSON object. Latency is measured
for every step event, not only for the latest of an update: from its `time_unix_s` to the animation frame
after the chart with it was drawn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gradio_client import Client
from playwright.sync_api import Page

from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

FIRST_POINT = "() => (window.ddpDrawLog || []).some(entry => entry.points > 0)"


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--config", type=json.loads, default={})
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(watch(Path(folder), options.config, options.seconds), indent=2))


def watch(runs_dir: Path, config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Start a run by a click, or by the endpoint if `config` is not the default, and watch it."""
    with page_driver.serve(runs_dir) as server, page_driver.open_browser() as browser:
        page = page_driver.open_page(browser, server.address, times_frames=True)
        page.get_by_role("button", name="Start").wait_for()
        page.wait_for_function("() => document.querySelector('.ddp-equation') !== null")
        clicked = time.time()
        if config:
            run_id = Client(server.address, verbose=False).predict(config, api_name="/start_run")["run_id"]
            page.goto(f"{server.address}/run?id={run_id}")
        else:
            page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/run?id=*")
        page.wait_for_function(FIRST_POINT, timeout=60_000)
        first_point_s = time.time() - clicked
        run = RunDirectory(runs_dir / page.url.partition("id=")[2])
        page.wait_for_timeout(max(0.0, clicked + seconds - time.time()) * 1000)
        figures = _figures(run, page, clicked, seconds)
        if liveness.read_status(run).state in events.LIVE_STATES:
            run.append_command("stop", save=False)
            while liveness.read_status(run).state in events.LIVE_STATES:
                time.sleep(0.05)
    return {
        "page_served_after_s": round(server.served_after_s, 2),
        "click_to_first_point_s": round(first_point_s, 2),
        **figures,
    }


def _figures(run: RunDirectory, page: Page, clicked: float, seconds: float) -> dict[str, Any]:
    log = page.evaluate("() => window.ddpDrawLog")
    stats = page.evaluate("() => window.ddpStats")
    until = clicked + seconds
    happened = [event for event in events.read_all(run.events) if event["time_unix_s"] <= until]
    steps = [event for event in happened if event["kind"] == "step"]
    evaluations = [event for event in happened if event["kind"] == "eval"]
    latencies_ms = sorted(_latencies_ms(steps, log))
    updates = [entry for entry in log if entry["type"] == "delta"]
    return {
        "watched_s": seconds,
        "steps": len(steps),
        "first_loss": steps[0]["loss"],
        "last_loss": statistics.fmean(event["loss"] for event in steps[-20:]),
        "newest_evaluation": evaluations[-1]["metrics"] if evaluations else None,
        "best_accuracy": max((event["metrics"].get("accuracy", 0.0) for event in evaluations), default=None),
        "events_measured": len(latencies_ms),
        "event_to_pixel_p50_ms": round(statistics.median(latencies_ms), 1),
        "event_to_pixel_p95_ms": round(latencies_ms[int(0.95 * len(latencies_ms))], 1),
        "updates": len(updates),
        "bytes_per_update_median": statistics.median(entry["bytes"] for entry in updates),
        "bytes_per_update_mean": round(statistics.fmean(entry["bytes"] for entry in updates)),
        "stream_opens": stats["opens"],
        "last_state": liveness.read_status(run).state,
    }


def _latencies_ms(steps: list[events.Event], log: list[dict[str, Any]]) -> list[float]:
    """Return the delay of each step event after the page's snapshot."""
    latencies: list[float] = []
    draws = iter(log)
    draw = next(draws)
    first_seq = draw["cursor"]
    for event in steps:
        if event["seq"] < first_seq:
            continue
        while draw["cursor"] <= event["seq"]:
            following = next(draws, None)
            if following is None:
                return latencies
            draw = following
        latencies.append(draw["drawn_unix_ms"] - event["time_unix_s"] * 1000)
    return latencies


if __name__ == "__main__":
    main()
