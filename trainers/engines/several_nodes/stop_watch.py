"""Sees to it that a Stop is obeyed also when the launcher of the first node hears nothing any more.

It ends its ranks by force when it has to. Where it is suspended, or its node is gone before Slurm has
noticed, it reports no more; then the job is cancelled here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.several_nodes.reports import NodesFolder

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
# It reports each second, and a shared file system may be slow.
PATIENCE_OF_STOP_S = 15.0
WATCHED_S = 180.0

_watched: set[Path] = set()
_lock = threading.Lock()


def watch(run: RunDirectory, read_status: Callable[[], Status], end: Callable[[Status], None]) -> None:
    """Watch a run that was just told to stop; returns at once.

    Args:
        end: cancels its job, and says the run's last words.
    """
    with _lock:
        if run.path in _watched:
            return
        _watched.add(run.path)
    name = f"stop-{run.run_id}"
    threading.Thread(target=_watch, args=(run, read_status, end), name=name, daemon=True).start()


def _watch(run: RunDirectory, read_status: Callable[[], Status], end: Callable[[Status], None]) -> None:
    try:
        began = heard_at = time.monotonic()
        newest: list[object] = []
        while time.monotonic() - began < WATCHED_S:
            status = read_status()
            if status.state not in events.LIVE_STATES:
                return
            signs = _signs_of_life(run)
            if signs != newest:
                newest, heard_at = signs, time.monotonic()
            if time.monotonic() - heard_at > PATIENCE_OF_STOP_S:
                log.warning("the first node of %s does not react to Stop: its job is cancelled", run.run_id)
                end(status)
                return
            time.sleep(POLL_EVERY_S)
    except OSError as error:
        log.warning("the stop of %s cannot be watched: %s", run.run_id, error)
    finally:
        with _lock:
            _watched.discard(run.path)


def _signs_of_life(run: RunDirectory) -> list[object]:
    """Return what the first node has reported last in each start; nothing while there is no report."""
    return [folder.read("0") for folder in NodesFolder.of_run(run)]
