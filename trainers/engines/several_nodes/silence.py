"""Whether the first node of a live run is heard, as a page sees it: nobody else may be left to say so."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.rundir import RunDirectory
from trainers.engines.several_nodes import reports
from trainers.engines.several_nodes.reports import NodesFolder

LOOK_EVERY_S = 1.0
SILENT_AFTER_S = 15.0
MOST_RUNS = 200


@dataclass
class _Heard:
    """What was heard last: the name of the start, the number of the report, and when it was new."""

    newest: tuple[str, int]
    host: str
    heard_at: float
    looked_at: float


_heard: dict[Path, _Heard] = {}
_lock = threading.Lock()


def of_first_node(run: RunDirectory) -> str | None:
    """Return for how long the launcher of node 0 has reported nothing; None while it does, or never began.

    Numbers of reports are compared by this process's clock, so no other clock has to be right.
    """
    now = time.monotonic()
    with _lock:
        known = _heard.get(run.path)
        if known is None or now - known.looked_at >= LOOK_EVERY_S:
            known = _look(run, known, now)
        silent_s = 0.0 if known is None else now - known.heard_at
        if known is None or silent_s < SILENT_AFTER_S:
            return None
        return f"Node 0 ({known.host}) has not been heard for {silent_s:.0f} s; what is shown here is older."


def _look(run: RunDirectory, known: _Heard | None, now: float) -> _Heard | None:
    starts = NodesFolder.of_run(run)
    values = starts[-1].read("0") if starts else None
    report = None if values is None else reports.node_report(values)
    if known is not None:
        known.looked_at = now
    if report is None:
        return known
    newest = (starts[-1].path.name, report.count)
    if known is None or known.newest != newest:
        known = _heard[run.path] = _Heard(newest=newest, host=report.host, heard_at=now, looked_at=now)
        while len(_heard) > MOST_RUNS:
            del _heard[next(iter(_heard))]
    return known
