"""The same four traces in TensorBoard and here, side by side: event to pixel, and bytes.

    python -m venv .venv-bench && .venv-bench/bin/pip install -r requirements-bench.txt
    python -m benchmarks.tensorboard_pixel --tensorboard .venv-bench/bin/python

Both show 100,000 points a trace of the same values, in two windows of one Chromium, while four updates a
second are written to both, each flushed at once. Now and then the step number jumps a tenth ahead,
so that both must redraw the whole axis; `screencast.py` tells from the pixels when each has. TensorBoard is
measured twice: as well as it can do by itself (its page reloads every 30 s at best and not at all unless
switched on), and with its reload button pressed again as soon as it lets itself be pressed, while its server
looks for new data as often as it can be told to in whole seconds (1).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
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
    """Return both programs' figures from one common run of updates."""
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
            pages = _open_both(browser, f"{ours.address}/run?id={run.run_id}", theirs)
            if presses_reload:
                pages["tensorboard"].evaluate(PRESS_RELOAD)
            films = {
                "ours": Film(pages["ours"], OUR_CHART),
                "tensorboard": Film(pages["tensorboard"], THEIR_CHART),
            }
            wires = {name: browsing.WireCounter(page) for name, page in pages.items()}
            for film in films.values():
                film.start()
            probe_every_s = 5.0 if presses_reload else 37.0
            probes = _write_both(pages["ours"], file, writer, num_steps, seconds, probe_every_s)
            reloads = pages["tensorboard"].evaluate("() => window.benchReloads ?? null")
            for film in films.values():
                film.stop()
            received = {name: wire.stop()[0] for name, wire in wires.items()}
            found = {name: film.latencies_ms(probes) for name, film in films.items()}
    return {
        "watched_s": seconds,
        "updates": round(seconds * UPDATES_PER_S),
        "reloads_pressed": reloads,
        **{
            name: _figures(values, received[name], seconds, len(films[name].frames))
            for name, values in found.items()
        },
    }


def _figures(
    latencies: list[float | None], received: int, seconds: float, num_pictures: int
) -> dict[str, Any]:
    seen = [value for value in latencies if value is not None]
    return {
        "event_to_pixel_ms": spread(seen, 0) if seen else None,
        "jumps_not_seen_before_the_next": len(latencies) - len(seen),
        "pictures": num_pictures,
        "bytes_per_update": round(received / (seconds * UPDATES_PER_S)),
    }


def _write_both(
    page: Page,
    file: EventFile,
    writer: subprocess.Popen[str],
    step: int,
    seconds: float,
    probe_every_s: float,
) -> list[float]:
    """Write updates to both and return the times at which the step jumped ahead."""
    probes: list[float] = []
    # Whatever room an axis has left at its end is used up before the first jump that counts.
    step = round(step * (1 + 2 * PROBE_SHARE))
    began = next_at = time.monotonic()
    next_probe_at = began + probe_every_s / 2
    while (now := time.monotonic()) - began < seconds:
        is_probe = now >= next_probe_at and seconds - (now - began) > probe_every_s / 2
        step = round(step * (1 + PROBE_SHARE)) if is_probe else step + 1
        fields = step_fields(step, 1.0, 1.0)
        unix_s = time.time()
        file.append([(unix_s, "step", fields)])
        _write_line(writer, unix_s, fields)
        if is_probe:
            probes.append(unix_s)
            next_probe_at += probe_every_s
        next_at += 1 / UPDATES_PER_S
        # Playwright's own waiting: meanwhile the pictures come in.
        page.wait_for_timeout(max(0.0, next_at - time.monotonic()) * 1000)
    return probes


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


def _open_both(browser: Browser, ours: str, theirs: str) -> dict[str, Page]:
    pages = {"ours": browsing.new_page(browser), "tensorboard": browsing.new_page(browser)}
    pages["ours"].goto(ours)
    pages["ours"].wait_for_function(browsing.READY)
    pages["ours"].locator(".ddp-charts").evaluate("(charts) => charts.scrollIntoView()")
    pages["tensorboard"].goto(theirs)
    pages["tensorboard"].evaluate(SWITCH_RELOADING_ON)
    pages["tensorboard"].goto(f"{theirs}?smoothing=0#timeseries")
    pages["tensorboard"].reload()
    pages["tensorboard"].locator(THEIR_CHART).first.wait_for()
    pages["tensorboard"].wait_for_timeout(SETTLE_MS)
    return pages


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
