"""The engine and the actual state of a run."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import LOCAL, Status, StatusError
from trainers.engines import registry
from trainers.engines.base import Description, Engine, true_status
from trainers.engines.several_nodes import restarts


def engine_for(status: Status) -> Engine:
    """Return the engine of a run with this status, or if unknown, the one that would resume it."""
    return registry.get_engine(status.engine if registry.is_known(status.engine) else LOCAL)


def read_status(run: RunDirectory) -> Status:
    """Return the run's actual state.

    A live state is reported only while the engine confirms it or the run is queued; otherwise it is "lost".
    """
    described: list[tuple[Status, Description]] = []

    def is_alive(run: RunDirectory, recorded: Status) -> bool | None:
        described.append((recorded, _describe(run, recorded)))
        return described[-1][1].is_alive

    status = true_status(run, is_alive)
    if status.state == "lost" and not registry.is_known(status.engine):
        message = f"The run was started by the engine {status.engine}, which this program does not have"
        return replace(status, error=f"{message}: its state cannot be determined here.")
    if status.state not in (*events.LIVE_STATES, "lost", "stopped"):
        return status
    description = next((description for recorded, description in described if recorded is status), None)
    description = description or _describe(run, status)
    # After a node failure, an engine may requeue the run without changing its status.
    if description.is_waiting and status.state != "lost":
        return replace(status, state="queued")
    return description.end or status


def silence(run: RunDirectory, status: Status) -> str | None:
    """Return a text about the time since a live run's processes or first node reported, or None."""
    if status.state not in events.LIVE_STATES:
        return None
    is_elsewhere = registry.is_known(status.engine) and status.engine != LOCAL and status.state != "queued"
    return _describe(run, status).silence or (restarts.silence_of_first_node(run) if is_elsewhere else None)


def detail(run: RunDirectory, status: Status) -> str | None:
    """Return a short reason why a live run's processes are suspended; None if they are not."""
    return _describe(run, status).detail if status.state in events.LIVE_STATES else None


def is_alive(run: RunDirectory) -> bool:
    """True if an engine owns the run or it is being trained from a terminal."""
    if run.is_locked():
        return True
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        if recorded is not None and recorded.state in events.LIVE_STATES:
            return _describe(run, recorded).is_alive is not False
    return False


def _describe(run: RunDirectory, status: Status) -> Description:
    """Return the description by the run's engine. If the engine is unknown, the run counts as not alive."""
    if not registry.is_known(status.engine):
        return Description()
    return registry.get_engine(status.engine).describe(run, status)
