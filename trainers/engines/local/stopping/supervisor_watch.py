"""Sees to it that a Stop is obeyed also when the process that looks after the run is not well.

The supervisor ends a run by force when it has to. If it is itself stopped (SIGSTOP) it is let go on; if it
hangs, it is killed with everything below it, and the run's final events are written here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil

from trainers.contract import events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import NOTHING_SAVED_HINT, RESUME_HINT
from trainers.files import private_files
from trainers.machine.processes import ProcessTree

log = logging.getLogger(__name__)

POLL_EVERY_S = 0.25
# Twenty times a second it looks around; only reading stacks holds it up for some seconds.
DEAF_AFTER_S = 9.0
STAYS_STOPPED_S = 1.5
WATCHED_S = 60.0

DEAF_MESSAGE = "The supervisor of this run did not react to Stop and was killed."
KILLED_MESSAGE = "The run was killed with all its processes."

# Returns a run's true state.
ReadStatus = Callable[[RunDirectory], Status]
Action = Literal["wait", "continue", "kill"]

_watched: dict[Path, float] = {}
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A supervisor at one moment; the signs of life change as long as it does anything."""

    is_stopped: bool
    signs_of_life: tuple[float, ...]


class Patience:
    """The rule: what to do with a supervisor, by what is seen of it over time."""

    def __init__(self, now: float) -> None:
        self._newest: Sight | None = None
        self._alive_at = now
        self._continued_at: float | None = None

    def judge(self, sight: Sight, now: float) -> Action:
        """Take a look; say what is to be done."""
        if self._newest is None or sight.signs_of_life != self._newest.signs_of_life:
            self._alive_at = now
        self._newest = sight
        if sight.is_stopped and self._continued_at is None:
            self._continued_at = now
            return "continue"
        if sight.is_stopped and self._continued_at is not None:
            return "kill" if now - self._continued_at > STAYS_STOPPED_S else "wait"
        return "kill" if now - self._alive_at > DEAF_AFTER_S else "wait"


def watch(run: RunDirectory, read_status: ReadStatus) -> None:
    """Watch the supervisor of a run that was just told to stop; returns at once."""
    with _lock:
        is_watched = run.path in _watched
        _watched[run.path] = time.monotonic()
    if not is_watched:
        threading.Thread(
            target=_watch, args=(run, read_status), name=f"stop-{run.run_id}", daemon=True
        ).start()


def _watch(run: RunDirectory, read_status: ReadStatus) -> None:
    patience = Patience(time.monotonic())
    try:
        while time.monotonic() - _watched[run.path] < WATCHED_S:
            status = read_status(run)
            supervisor = supervisor_of(run, status)
            if supervisor is None:
                return
            action = _inspected(supervisor, lambda sight: patience.judge(sight, time.monotonic()))
            if action == "continue":
                log.warning("the supervisor of %s was suspended (SIGSTOP): resuming it", run.run_id)
                supervisor.resume()
            elif action == "kill":
                log.warning("the supervisor of %s does not react: killing it", run.run_id)
                end(run, status, supervisor, read_status, DEAF_MESSAGE)
                return
            time.sleep(POLL_EVERY_S)
    except psutil.NoSuchProcess:
        return  # it has ended, as it should
    except (private_files.ForeignFileError, FileNotFoundError) as error:
        log.warning("the supervisor of %s cannot be watched: %s", run.run_id, error)
    finally:
        with _lock:
            _watched.pop(run.path, None)


def supervisor_of(run: RunDirectory, status: Status) -> psutil.Process | None:
    """Return the process that owns the run; its number alone could be another's by now."""
    if status.state not in events.LIVE_STATES or status.pid is None or not run.is_locked():
        return None
    private_files.require_ours(run.status)  # it names the process
    process = psutil.Process(status.pid)
    return process if process.create_time() == status.pid_start_time else None


def _inspected(supervisor: psutil.Process, judge: Callable[[Sight], Action]) -> Action:
    with supervisor.oneshot():
        times, switches = supervisor.cpu_times(), supervisor.num_ctx_switches()
        return judge(
            Sight(
                is_stopped=supervisor.status() == psutil.STATUS_STOPPED,
                signs_of_life=(
                    times.user,
                    times.system,
                    float(switches.voluntary),
                    float(switches.involuntary),
                ),
            )
        )


def end(
    run: RunDirectory, status: Status, supervisor: psutil.Process, read_status: ReadStatus, message: str
) -> None:
    """Kill a supervisor and all below it, and say what it cannot say any more."""
    ProcessTree(supervisor.pid).kill()
    if read_status(run).state != "lost":
        return  # the run had its last word
    lock = run.acquire_lock()
    try:
        _say_last_words(run, status, message)
    finally:
        os.close(lock)


def _say_last_words(run: RunDirectory, status: Status, message: str) -> None:
    hint = RESUME_HINT if run.list_checkpoints() else NOTHING_SAVED_HINT
    warning = {"code": "stop_forced", "message": message, "hint": hint, "rank": None, "traceback": None}
    now = time.time()
    file = EventFile(run.events)
    try:
        file.append([(now, "warning", warning), (now, "state", {"state": "stopped", "reason": message})])
    finally:
        file.close()
    run.write_status(replace(status, state="stopped", error=None, ended_unix_s=now))
