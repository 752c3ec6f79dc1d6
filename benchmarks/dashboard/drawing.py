"""What watching a live run takes of the processor: the browser that draws it, and the server.

The run is made up and trains nothing, so whatever is used here is used for showing it. Where ranks train on
the same cores, each share of one is missing there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import CpuMeter
from benchmarks.made_writer import live_run
from tools import page_driver

SETTLE_MS = 8_000
# As of a browser's processes: its name for what each does.
PROCESS_TYPE = re.compile(r"--type=(\S+)")


def measure(seconds: float, rates: Sequence[float]) -> dict[str, Any]:
    """Return, for each number of steps a second, what each process used of one core, in percent."""
    return {"seconds": seconds, "steps_a_second": {f"{rate:g}": _shown(seconds, rate) for rate in rates}}


def _shown(seconds: float, rate: float) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory() as folder,
        page_driver.serve(Path(folder), page_driver.NO_STANDBY) as server,
        page_driver.open_browser() as browser,
        live_run(Path(folder) / "watched", 10, "--per-second", str(rate)) as run,
    ):
        page = page_driver.open_page(browser, f"{server.address}/run?id={run.run_id}")
        page.wait_for_timeout(SETTLE_MS)
        meters = {"server": [CpuMeter(server.process.pid)]}
        for process in _browser_s():
            kind = PROCESS_TYPE.search(" ".join(process.cmdline()))
            meters.setdefault(kind[1] if kind else "browser", []).append(CpuMeter(process.pid))
        page.wait_for_timeout(seconds * 1000)
        used = {kind: round(sum(meter.percent() for meter in some), 2) for kind, some in meters.items()}
    return {"all": round(sum(used.values()), 2), **used}


def _browser_s() -> list[psutil.Process]:
    """Return the processes of the browser that this one has started."""
    started = psutil.Process().children(recursive=True)
    return [process for process in started if "chrom" in process.name()]
