"""Whether the first node of a live run is heard, as a page sees it: nobody else may be left to say so."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.rundir import RunDirectory
from trainers.engines.several_nodes import reports
from trainers.engines.several_nodes.reports import NodeReport, NodesFolder

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
    asked_at: float


_heard: dict[Path, _Heard] = {}
# Runs whose files are read just now, by a thread that may wait for a file server.
_read: set[Path] = set()
_lock = threading.Lock()


def of_first_node(run: RunDirectory) -> str | None:
    """Return for how long the launcher of node 0 has reported nothing; None while it does, or never began.

    Numbers of reports are compared by this process's clock, so no other clock has to be right.
    """
    now = time.monotonic()
    with _lock:
        known = _heard.get(run.path)
        if known is not None and now - known.asked_at > SILENT_AFTER_S:
            # Nobody has asked, so the run may have ended and begun again: that is no silence.
            del _heard[run.path]
            known = None
        if known is not None:
            known.asked_at = now
        is_due = known is None or now - known.looked_at >= LOOK_EVERY_S
        reads = is_due and run.path not in _read
        if reads:
            _read.add(run.path)
    if reads:
        try:
            start, report = _newest_report(run)
        finally:
            with _lock:
                _read.discard(run.path)
        now = time.monotonic()
        with _lock:
            known = _note(run.path, start, report, now)
    silent_s = 0.0 if known is None else now - known.heard_at
    if known is None or silent_s < SILENT_AFTER_S:
        return None
    return f"Node 0 ({known.host}) has not been heard for {silent_s:.0f} s; what is shown here is older."


def _newest_report(run: RunDirectory) -> tuple[str | None, NodeReport | None]:
    starts = NodesFolder.of_run(run)
    if not starts:
        return None, None
    values = starts[-1].read("0")
    return starts[-1].path.name, None if values is None else reports.node_report(values)


def _note(path: Path, start: str | None, report: NodeReport | None, now: float) -> _Heard | None:
    """Note what was read; the caller holds the lock."""
    known = _heard.get(path)
    if known is not None:
        known.looked_at = now
    if start is None:
        return known
    if report is None:
        if known is not None and known.newest[0] != start:
            del _heard[path]  # the newest start has not reported yet
            return None
        return known
    newest = (start, report.count)
    if known is None or known.newest != newest:
        known = _heard[path] = _Heard(
            newest=newest, host=report.host, heard_at=now, looked_at=now, asked_at=now
        )
        while len(_heard) > MOST_RUNS:
            del _heard[next(iter(_heard))]
    return known
