"""The same four traces in TensorBoard and here, side by side: event to pixel, and bytes.

    python -m venv .venv-bench && .venv-bench/bin/pip install -r requirements-bench.txt
    python -m benchmarks.tensorboard_pixel --tensorboard .venv-bench/bin/python

Both show 100,000 points a trace of the same values while four updates a second are written to both, each
flushed at once; one Chromium watches one after the other, so that neither takes the other's time. Now and
then the step number jumps a tenth ahead, so that both must redraw the whole axis, the dearest update there
is; `screencast.py` tells from the pixels when each has. TensorBoard is measured twice: as well as it can do
by itself (its page reloads every 30 s at best, and not at all unless switched on), and with its reload
button pressed again as soon as it lets itself be pressed, while its server looks for new data every second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.dashboard import browsing
from benchmarks.machine import Conditions, spread
from benchmarks.made_run import UPDATES_PER_S, step_fields
from benchmarks.made_writer import finished_run
from benchmarks.screencast import Film
from tools import page_driver
from tools.page_driver import REPOSITORY
from trainers.contract import events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

TRACES = ("loss", "samples_per_s", "lr", "grad_norm")
PROBE_SHARE = 0.1
PROBE_EVERY_S = 5.0
# No multiple of TensorBoard's 30 s: the jumps fall on different moments of its waiting.
PROBE_SELDOM_S = 37.0
SETTLE_MS = 15_000
OUR_CHART = f"{browsing.LOSS} .nsewdrag"
THEIR_CHART = "scalar-card line-chart"
# What somebody does who wants to see the newest: presses the button whenever it can be pressed.
PRESS_RELOAD = """() => {
  window.benchReloads = 0;
  setInterval(() => {
    const button = document.querySelector(".reload-button");
    if (button && !button.disabled && !button.classList.contains("loading")) {
      button.click();
      window.benchReloads += 1;
    }
  }, 100);
}"""
SWITCH_RELOADING_ON = """() => localStorage.setItem("_tb_global_settings",
  JSON.stringify({ autoReload: true, autoReloadPeriodInMs: 30000 }))"""


def main() -> None:
    """Measure both and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensorboard", type=Path, required=True, help="a Python with TensorBoard")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    conditions = Conditions.note()
    python = options.tensorboard.absolute()
    pressing = measure(python, options.steps, options.seconds, presses_reload=True)
    alone = measure(python, options.steps, 4 * options.seconds, presses_reload=False)
    figures = {"steps": options.steps, "reload_pressed": pressing, "reloading_by_itself": alone}
    print(json.dumps({"machine": conditions.report(), **figures}, indent=2))


def measure(python: Path, num_steps: int, seconds: float, *, presses_reload: bool) -> dict[str, Any]:
    """Return both programs' figures from one run of updates, of which each is watched for so long."""
    with tempfile.TemporaryDirectory() as folder:
        run = finished_run(Path(folder) / "runs" / "watched", num_steps, "--flat")
        logs = Path(folder) / "logs"
        with (
            _writer(python, logs) as writer,
            page_driver.serve(run.path.parent) as ours,
            _tensorboard(python, logs, "1" if presses_reload else "5") as theirs,
            page_driver.open_browser() as browser,
            _live(run) as file,
        ):
            _copy_history(run, writer)
            updates = Updates(file, writer, num_steps)
            probe_every_s = PROBE_EVERY_S if presses_reload else PROBE_SELDOM_S
            page = _open_ours(browser, f"{ours.address}/run?id={run.run_id}")
            our_figures = _watch(page, OUR_CHART, updates, seconds, probe_every_s)
            page.close()
            page = _open_theirs(browser, theirs)
            if presses_reload:
                page.evaluate(PRESS_RELOAD)
            their_figures = _watch(page, THEIR_CHART, updates, seconds, probe_every_s)
            their_figures["reloads"] = page.evaluate("() => window.benchReloads ?? null")
    return {"each_watched_s": seconds, "ours": our_figures, "tensorboard": their_figures}


def _watch(page: Page, chart: str, updates: Updates, seconds: float, probe_every_s: float) -> dict[str, Any]:
    """Film one program's chart while updates are written to both."""
    film, wire = Film(page, chart), browsing.WireCounter(page)
    film.start()
    probes = updates.write(page, seconds, probe_every_s)
    film.stop()
    received, _ = wire.stop()
    latencies = film.latencies_ms(probes)
    seen = [value for value in latencies if value is not None]
    return {
        "event_to_pixel_ms": spread(seen, 0) if seen else None,
        "jumps_not_seen_before_the_next": len(latencies) - len(seen),
        "pictures": len(film.frames),
        "bytes_per_update": round(received / (seconds * UPDATES_PER_S)),
    }


@dataclass
class Updates:
    """Writes the same updates to our run and to TensorBoard's log."""

    file: EventFile
    writer: subprocess.Popen[str]
    step: int

    def write(self, page: Page, seconds: float, probe_every_s: float) -> list[float]:
        """Write for so long and return the times at which the step jumped ahead."""
        probes: list[float] = []
        # Whatever room an axis has left at its end is used up before the first jump that counts.
        self.step = round(self.step * (1 + 2 * PROBE_SHARE))
        began = next_at = time.monotonic()
        next_probe_at = began + probe_every_s / 2
        while (now := time.monotonic()) - began < seconds:
            is_probe = now >= next_probe_at and seconds - (now - began) > probe_every_s / 2
            unix_s = self._write_one(round(self.step * (1 + PROBE_SHARE)) if is_probe else self.step + 1)
            if is_probe:
                probes.append(unix_s)
                next_probe_at += probe_every_s
            next_at += 1 / UPDATES_PER_S
            # Playwright's own waiting: meanwhile the pictures come in.
            page.wait_for_timeout(max(0.0, next_at - time.monotonic()) * 1000)
        return probes

    def _write_one(self, step: int) -> float:
        self.step = step
        fields = step_fields(step, 1.0, 1.0)
        unix_s = time.time()
        self.file.append([(unix_s, "step", fields)])
        _write_line(self.writer, unix_s, fields)
        return unix_s


def _write_line(writer: subprocess.Popen[str], unix_s: float, fields: dict[str, Any]) -> None:
    assert writer.stdin is not None
    values = {name: fields[name] for name in TRACES}
    writer.stdin.write(json.dumps([unix_s, fields["step"], values]) + "\n")
    writer.stdin.flush()


def _copy_history(run: RunDirectory, writer: subprocess.Popen[str]) -> None:
    """Give TensorBoard the steps that our run has already."""
    assert writer.stdin is not None and writer.stdout is not None
    for event in events.read_all(run.events):
        if event["kind"] == "step":
            values = {name: event[name] for name in TRACES}
            writer.stdin.write(json.dumps([event["time_unix_s"], event["step"], values]) + "\n")
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.stdout.readline().strip() == "ready"


def _open_ours(browser: Browser, address: str) -> Page:
    page = browsing.new_page(browser)
    page.goto(address)
    page.wait_for_function(browsing.READY)
    page.locator(".ddp-charts").evaluate("(charts) => charts.scrollIntoView()")
    page.wait_for_timeout(SETTLE_MS)
    return page


def _open_theirs(browser: Browser, address: str) -> Page:
    page = browsing.new_page(browser)
    page.goto(address)
    page.evaluate(SWITCH_RELOADING_ON)
    page.goto(f"{address}?smoothing=0#timeseries")
    page.locator(THEIR_CHART).first.wait_for()
    page.wait_for_timeout(SETTLE_MS)
    return page


@contextlib.contextmanager
def _live(run: RunDirectory) -> Iterator[EventFile]:
    """Go on with our run: owned by this process, as by a supervisor."""
    lock = run.acquire_lock()
    file = EventFile(run.events)
    file.append([(time.time(), "state", {"state": "running", "reason": "Goes on, for a benchmark."})])
    yield file
    file.close()
    del lock


@contextlib.contextmanager
def _writer(python: Path, logs: Path) -> Iterator[subprocess.Popen[str]]:
    logs.mkdir()
    command = [str(python), str(REPOSITORY / "benchmarks" / "tensorboard_writer.py"), str(logs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def _tensorboard(python: Path, logs: Path, reload_interval_s: str) -> Iterator[str]:
    port = page_driver.free_port()
    command = [str(python), "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port)]
    with page_driver.serve_command([*command, "--reload_interval", reload_interval_s], port) as server:
        yield server.address + "/"


if __name__ == "__main__":
    main()
