"""The list of thousands of runs: how soon it is there, how soon a key filters it, what it costs the server.

    python -m benchmarks.many_runs [--runs 5000] [--steps 300] [--folder FOLDER]

Makes run directories that were never trained (benchmarks/made_up_runs.py), serves them and looks at them in
headless Chromium. All times are the browser's own, from the start of the navigation or from the key, until
the frame after the one in which the rows were drawn. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page

from benchmarks import made_up_runs
from tools import page_driver
from tools.page_driver import Server

REPEATS = 5
IDLE_S = 20.0
TYPED = "warm resnet 49"
# Notes when rows were first drawn, and after each key when the list had been drawn for it.
WATCH = """() => {
  window.shownAfterMs = null;
  window.filterMs = [];
  let keyAt = null;
  document.addEventListener('keydown', event => { keyAt = event.timeStamp; }, true);
  const afterFrame = act => requestAnimationFrame(() => setTimeout(act));
  new MutationObserver(() => {
    if (window.shownAfterMs === null && document.querySelector('.ddp-list-row .ddp-small-curve')) {
      window.shownAfterMs = 0;
      afterFrame(() => { window.shownAfterMs = performance.now(); });
    }
  }).observe(document, { childList: true, subtree: true });
  document.addEventListener('input', () => {
    const from = keyAt;
    afterFrame(() => window.filterMs.push(performance.now() - from));
  });
}"""
SHOWN = "() => window.shownAfterMs > 0"
# What the rows on the page say, and how many the page says there are.
ROWS = """() => ({
  texts: [...document.querySelectorAll(".ddp-list-row")]
    .map(row => [row.dataset.run, row.querySelector(".ddp-run-name").textContent]),
  words: document.querySelector('.ddp-shown').textContent,
})"""


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="where they were made before, or are to be kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)) / "runs"
        if not folder.exists():
            made_up_runs.make(folder, options.runs, options.steps)
        print(json.dumps(measure(folder), indent=2))


def measure(folder: Path) -> dict[str, Any]:
    """Read all for the first time, start again, and look."""
    first_reading_s = _read_for_the_first_time(folder)
    with page_driver.serve(folder) as server, page_driver.open_browser() as browser:
        without_page = _idle_percent(server)
        cold = [_cold_ms(browser, server) for _ in range(REPEATS)]
        page = _watched_page(browser)
        warm = [_opened_ms(page, server) for _ in range(REPEATS + 1)][1:]
        filtered = _filter_ms(page, server)
        with_page = _idle_percent(server)
        memory = psutil.Process(server.process.pid).memory_info().rss
    return {
        "runs": sum((path / "config.json").is_file() for path in folder.iterdir()),
        "first_reading_of_all_s": round(first_reading_s, 1),
        "served_after_restart_s": round(server.served_after_s, 2),
        "shown_cold_ms": _summary(cold),
        "shown_warm_ms": _summary(warm),
        "filtered_ms": _summary(filtered),
        "server_memory_mb": round(memory / 1e6),
        "server_idle_percent_of_a_core": {"without_page": without_page, "with_page": with_page},
        "load_average": psutil.getloadavg()[0],
    }


def _read_for_the_first_time(folder: Path) -> float:
    for path in (folder / ".cache").glob("*"):
        path.unlink()
    with page_driver.serve(folder) as server:
        started = time.monotonic()
        _fetch(server, "live/runs")
        return time.monotonic() - started


def _watched_page(browser: Browser) -> Page:
    # A window of its own: nothing is in its cache.
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.add_init_script(f"({WATCH})()")
    return page


def _cold_ms(browser: Browser, server: Server) -> float:
    page = _watched_page(browser)
    try:
        return _opened_ms(page, server)
    finally:
        page.context.close()


def _opened_ms(page: Page, server: Server) -> float:
    page.goto(f"{server.address}/runs")
    page.wait_for_function(SHOWN)
    return float(page.evaluate("() => window.shownAfterMs"))


def _filter_ms(page: Page, server: Server) -> list[float]:
    """Type letter by letter; after each the rows on the page are held against the server's whole list."""
    runs = _fetch(server, "live/runs")
    page.get_by_role("searchbox").focus()
    typed = ""
    for letter in TYPED:
        page.keyboard.press("Space" if letter == " " else letter)
        typed += letter
        page.wait_for_function("count => window.filterMs.length === count", arg=len(typed))
        fitting = {run["run_id"]: run["name"] for run in runs if _fits(run, typed)}
        shown = page.evaluate(ROWS)
        assert shown["words"].startswith(f"{len(fitting):,} "), (typed, shown["words"], len(fitting))
        assert all(fitting.get(run_id) == name for run_id, name in shown["texts"])
        assert len(shown["texts"]) >= min(len(fitting), 10)
        page.wait_for_timeout(150)
    measured: list[float] = page.evaluate("() => window.filterMs")
    return measured


def _fits(run: dict[str, Any], typed: str) -> bool:
    words = " ".join(
        str(run[name])
        for name in ("name", "run_id", "note", "model", "model_label", "dataset", "dataset_label", "state")
    )
    return all(word in words.lower() for word in typed.split())


def _idle_percent(server: Server) -> float:
    process = psutil.Process(server.process.pid)
    before, started = process.cpu_times(), time.monotonic()
    time.sleep(IDLE_S)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return round(100 * used / (time.monotonic() - started), 2)


def _fetch(server: Server, path: str) -> Any:
    with urllib.request.urlopen(f"{server.address}/{path}", timeout=600) as answer:
        return json.load(answer)


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values)), "worst": round(max(values))}


if __name__ == "__main__":
    main()
