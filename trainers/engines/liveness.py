"""The engine and the actual state of a run."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import LOCAL, Status, StatusError
from trainers.engines import registry
from trainers.engines.base import Engine, true_status
from trainers.engines.registry import UnknownEngineError
from trainers.engines.several_nodes import restarts


def engine_to_ask(status: Status) -> Engine:
    """Return the engine of a run with this status; if it is not registered, the one that would resume it."""
    return registry.named(status.engine if registry.is_known(status.engine) else LOCAL)


def read_status(run: RunDirectory) -> Status:
    """Return the run's actual state.

    A live state is reported only while the engine confirms it or the run is queued; otherwise it is "lost".
    """
    status = true_status(run, _is_alive)
    if status.state == "lost" and not registry.is_known(status.engine):
        words = f"It was started by the engine {status.engine}, which this program does not have"
        return replace(status, error=f"{words}: its state cannot be determined here.")
    if status.state in (*events.LIVE_STATES, "stopped") and registry.is_known(status.engine):
        # After a node failure, an engine may requeue the run without changing its status.
        found = registry.named(status.engine).describe(status.handle)
        if found.is_waiting:
            return replace(status, state="queued")
    if status.state in ("lost", "stopped") and registry.is_known(status.engine):
        return registry.named(status.engine).ended_status(run, status)
    return status


def silence(status: Status, run: RunDirectory | None = None) -> str | None:
    """Return since when a live run's processes have not reported, as text; None if they report.

    Args:
        run: If given, also check the reports of its first node.
    """
    if status.state not in events.LIVE_STATES or not registry.is_known(status.engine):
        return None
    text = registry.named(status.engine).describe(status.handle).silence
    is_at_work = run is not None and status.state != "queued" and status.engine != LOCAL
    return text or (restarts.silence_of_first_node(run) if run is not None and is_at_work else None)


def detail(status: Status) -> str | None:
    """Return a short reason why a live run's processes are suspended; None if they are not."""
    if status.state not in events.LIVE_STATES or not registry.is_known(status.engine):
        return None
    return registry.named(status.engine).describe(status.handle).detail


def is_alive(run: RunDirectory) -> bool:
    """True if an engine owns the run or it is being trained from a terminal."""
    if run.is_locked():
        return True
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        is_live = recorded is not None and recorded.state in events.LIVE_STATES
        return is_live and recorded is not None and _is_alive(run, recorded) is not False
    return False


def _is_alive(run: RunDirectory, recorded: Status) -> bool | None:
    try:
        return registry.named(recorded.engine).is_alive(run, recorded.handle)
    except UnknownEngineError:
        return False  # unknown engine: this program can neither watch nor end the run
