"""A run's true state: what its directory says, and whether somebody still looks after it.

Whether it is alive is asked of its engine; the rest is in its files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import LOST_MESSAGE, NOTHING_SAVED_HINT, RESUME_HINT, Status, StatusError

LAUNCH_GRACE_S = 20.0

# Tells whether somebody looks after the run of this status; None where that cannot be found out.
IsAlive = Callable[[RunDirectory, Status], bool | None]


def true_status(run: RunDirectory, is_alive: IsAlive) -> Status:
    """Return the run's true state: a live one only while its engine says so, or it waits."""
    if run.queued.exists() and (waiting := _waiting_status(run, is_alive)) is not None:
        return waiting
    try:
        return _recorded_status(run, is_alive)
    except StatusError as error:
        found = _state_without_status(run)
        return replace(found, error=str(error) if found.state not in events.LIVE_STATES else None)


def _recorded_status(run: RunDirectory, is_alive: IsAlive) -> Status:
    recorded = status_file.read(run.status)
    if recorded is None:
        return _state_without_status(run)
    if recorded.state in events.LIVE_STATES and is_alive(run, recorded) is not False:
        return recorded
    if recorded.state not in events.LIVE_STATES:
        # Locked all the same: somebody trains it again by hand, and only the events know.
        newest = events.last_state(run.events) if run.is_locked() else None
        return recorded if newest is None else replace(recorded, state=newest)
    # Whoever looked after it may have ended between the two reads: what was written last is what counts.
    recorded = status_file.read(run.status) or recorded
    if recorded.state not in events.LIVE_STATES:
        return recorded
    said = events.last(run.events)
    if said is not None and said["kind"] == "state" and said["state"] in events.ENDED_STATES:
        # The run had its last word; only the status could not be written any more.
        return replace(recorded, state=said["state"])
    return replace(recorded, state="lost", error=_lost_message(run))


def _waiting_status(run: RunDirectory, is_alive: IsAlive) -> Status | None:
    """Return the status of a run with a ticket; None when it was taken from the line a moment ago."""
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        if recorded is not None and recorded.state in events.LIVE_STATES and is_alive(run, recorded):
            return recorded  # its engine is about to take the ticket
    return Status(state="queued") if run.queued.exists() else None


def _state_without_status(run: RunDirectory) -> Status:
    """A run that no engine has written down: just created, or started by hand."""
    newest = events.last_state(run.events)
    if run.is_locked():
        return Status(state=newest or "starting")
    if newest is not None:
        is_lost = newest in events.LIVE_STATES
        return Status(state="lost", error=_lost_message(run)) if is_lost else Status(state=newest)
    age_s = time.time() - run.config.stat().st_mtime if run.config.exists() else LAUNCH_GRACE_S
    # A file from the future (the clock was set back) is not new for ever.
    if abs(age_s) < LAUNCH_GRACE_S:
        return Status(state="queued")
    return Status(state="lost", error=_lost_message(run))


def _lost_message(run: RunDirectory) -> str:
    is_saved = any(run.checkpoints.glob("step_*/manifest.json"))
    return f"{LOST_MESSAGE} {RESUME_HINT if is_saved else NOTHING_SAVED_HINT}"
