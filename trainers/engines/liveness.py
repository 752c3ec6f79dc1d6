"""Which engine a run belongs to, and what has become of the run."""

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


def engine_of(run: RunDirectory) -> Engine:
    """Return the engine that started a run.

    Raises:
        UnknownEngineError: when this program has none of that name.
    """
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        return registry.named(LOCAL if recorded is None else recorded.engine)
    return registry.named(LOCAL)


def engine_to_ask(run: RunDirectory) -> Engine:
    """Return a run's engine; where it is unknown here, the one by which the run would resume."""
    try:
        return engine_of(run)
    except UnknownEngineError:
        return registry.named(LOCAL)


def read_status(run: RunDirectory) -> Status:
    """Return the run's true state: a live one only while its engine says so, or it waits."""
    status = true_status(run, _is_alive)
    if status.state == "lost" and not registry.is_known(status.engine):
        words = f"It was started by the engine {status.engine}, which this program does not have"
        return replace(status, error=f"{words}: what has become of it cannot be found out here.")
    if status.state in (*events.LIVE_STATES, "stopped") and registry.is_known(status.engine):
        # An engine that starts a run again by itself, after a node failed, has it wait again without a word.
        is_waiting = registry.named(status.engine).is_waiting(status.handle)
        if is_waiting:
            return replace(status, state="queued")
    if status.state in ("lost", "stopped") and registry.is_known(status.engine):
        return registry.named(status.engine).ended_status(run, status)
    return status


def silence(status: Status, run: RunDirectory | None = None) -> str | None:
    """Return since when nothing is known of a live run's processes, as text; None: they are known of.

    Args:
        run: looks also whether its first node still reports.
    """
    if status.state not in events.LIVE_STATES or not registry.is_known(status.engine):
        return None
    said = registry.named(status.engine).silence(status.handle)
    is_at_work = run is not None and status.state != "queued" and status.engine != LOCAL
    return said or (restarts.silence_of_first_node(run) if run is not None and is_at_work else None)


def detail(status: Status) -> str | None:
    """Return in a few words why the processes of a live run stand still; None: they do not."""
    if status.state not in events.LIVE_STATES or not registry.is_known(status.engine):
        return None
    return registry.named(status.engine).detail(status.handle)


def is_alive(run: RunDirectory) -> bool:
    """Tell whether somebody looks after a run, or trains it by hand."""
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
        return False  # an engine of another program: nobody here could follow or end it
