"""Follows a run's events and sends them to a tracker.

The follower only reads `events.jsonl`, in a separate process at the lowest priority, so it does not affect
the run. After the tracker has accepted a chunk of the file, the follower writes the position after this chunk
to `forward/<tracker>.json`, from which the next follower continues. If it is killed before this write, the
chunk is sent again, and each tracker drops duplicates.

Any failure of the tracker is recorded, and retried at growing intervals while the run is live, and for
`GIVE_UP_S` after its end.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, library_error_text
from trainers.engines import liveness, registry
from trainers.files import private_files
from trainers.forward import state as state_module
from trainers.forward.points import KINDS, Point, PointMaker
from trainers.forward.state import FOLDER, ForwardState
from trainers.machine.os_errors import explain

POLL_S = 2.0
# Bytes per call, about 1,000 steps, which every service accepts within `CALL_LIMIT_S`.
CHUNK_BYTES = 256 * 1024
CALL_LIMIT_S = 60.0
FIRST_WAIT_S, MAX_WAIT_S = 2.0, 60.0
GIVE_UP_S = 30 * 60.0
SILENT_S = 30 * 60.0
LOCK_WAIT_S = 10.0
MAX_ERROR = 300


@dataclass(frozen=True, kw_only=True)
class TrackerTarget:
    """The arguments for opening a run at a tracker.

    Attributes:
        address: address of the service; empty: the tracker's default.
        key: identifies the run, also after a restart.
        memory: values that the follower stores for the next `open`; the tracker may change them at any time.
        folder: folder for the tracker's local files.
    """

    run_name: str
    project: str
    address: str
    is_offline: bool
    parameters: dict[str, Any]
    key: str
    memory: dict[str, str | int]
    folder: Path


class Tracker(Protocol):
    """A run at a tracker, opened by `Run(target)`. Methods return when the tracker has accepted the data.
    After a failure, the run is opened again.
    """

    where: str

    def send(self, points: Sequence[Point]) -> None: ...

    def close(self, run_state: str) -> None: ...


class _TimeLimitReached(BaseException):
    """Raised at the time limit; not an `Exception`, so that no library catches it and retries."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block with TimeoutError after this time, also during a blocking socket call."""

    def interrupt(*_: object) -> None:
        raise _TimeLimitReached

    previous_handler = signal.signal(signal.SIGALRM, interrupt)
    # Repeat every few seconds, in case a library's destructor has swallowed the first one.
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    except _TimeLimitReached:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


@contextlib.contextmanager
def lock_follower(run: RunDirectory, tracker: str) -> Iterator[bool]:
    """Hold the lock of this run and tracker; yield False if another follower holds it.

    Waits a few seconds, because the follower of an earlier start may be about to exit.
    """
    (run.path / FOLDER).mkdir(mode=private_files.run_mode(run.path.parent), exist_ok=True)
    descriptor = private_files.open_lock(state_module.lock_file(run, tracker))
    try:
        yield private_files.lock_within(descriptor, LOCK_WAIT_S)
    finally:
        os.close(descriptor)


def final_state(run: RunDirectory) -> str | None:
    """Return the final state of a run, or None if it may continue.

    This process can query only the local engine. A run on a cluster counts as live until its files record an
    end, or have not changed for `SILENT_S`, because it may wait in a queue.
    """
    status = liveness.read_status(run)
    if status.state not in events.ENDED_STATES:
        return None
    if status.state == "lost" and not registry.is_known(status.engine):
        stored_status = status_file.read(run.status)
        modified_times = [file.stat().st_mtime for file in (run.status, run.events) if file.exists()]
        if (stored_status is not None and stored_status.state == "queued") or time.time() - max(
            modified_times
        ) < SILENT_S:
            return None
    return status.state


class EventForwarder:
    """Forwards one run to one tracker, until the run has ended and the tracker has accepted all events.

    Args:
        open_tracker: opens the run at the tracker; also called after failures.
        call_limit_s: time limit for one call of the tracker.
        give_up_s: time for retries after the run's end.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        name: str,
        open_tracker: Callable[[ForwardState], Tracker],
        *,
        call_limit_s: float = CALL_LIMIT_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._run, self._config, self._name = run, config, name
        self._open = open_tracker
        self._call_limit_s, self._give_up_s = call_limit_s, give_up_s
        self._state = state_module.read(run, name) or ForwardState()
        if state_module.TRACKERS[name].buffers and self._state.phase != "done":
            self._state.offset = self._state.step = 0
        self._state.phase = "following"
        self._save()  # store the key before the tracker gets it
        self._maker = PointMaker(self._state.step)
        self._tracker: Tracker | None = None
        self._num_failures = 0
        self._failing_since_end: float | None = None

    def follow(self) -> bool:
        """Forward until the run has ended; return True if the tracker has accepted all events."""
        while True:
            # Read the state before the events, because an ended run writes no more events.
            end_state = final_state(self._run)
            batch, end = events.read(self._run.events, self._state.offset, KINDS, CHUNK_BYTES)
            if end > self._state.offset:
                is_done = self._send(batch, end)
            elif end_state is not None:
                is_done = self._call(operator.methodcaller("close", end_state))
                if is_done and final_state(self._run) is None:
                    self._tracker = None  # the run was resumed meanwhile: open it again for the next events
                elif is_done:
                    self._save(phase="done")
                    return True
            else:
                time.sleep(POLL_S)
                continue
            if not is_done and not self._wait(end_state is not None):
                return False

    def _send(self, batch: Sequence[events.Event], end: int) -> bool:
        maker = copy.copy(self._maker)  # a copy, because a chunk that is not accepted is converted again
        points = list(maker.points(batch))
        if points and not self._call(operator.methodcaller("send", points)):
            return False
        self._maker = maker
        self._save(phase="following", offset=end, step=maker.step)
        return True

    def _call(self, action: Callable[[Tracker], Any]) -> bool:
        """Call the tracker; return True if it succeeds, otherwise record the error."""
        try:
            with time_limit(self._call_limit_s):
                if self._tracker is None:
                    self._tracker = self._open(self._state)
                    self._state.where = self._tracker.where
                action(self._tracker)
        except Exception as error:  # noqa: BLE001 - a service can be wrong in any way, and is tried again
            self._tracker = None
            self._num_failures += 1
            self._state.error = library_error_text(error)[:MAX_ERROR]
            return False
        self._num_failures = 0
        self._failing_since_end = None
        self._state.error = self._state.retry_unix_s = None
        return True

    def _wait(self, is_over: bool) -> bool:
        """Wait before the next attempt; return False after the last one."""
        now = time.monotonic()
        if not is_over:
            self._failing_since_end = None
        elif self._failing_since_end is None:
            self._failing_since_end = now
        if self._failing_since_end is not None and now - self._failing_since_end >= self._give_up_s:
            self._state.retry_unix_s = None
            self._save(phase="given_up")
            return False
        wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (self._num_failures - 1))
        self._state.retry_unix_s = time.time() + wait_s
        self._save(phase="retrying")
        time.sleep(wait_s)
        return True

    def _save(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self._state, name, value)
        try:
            state_module.write(self._run, self._name, self._state)
        except OSError as error:  # the disk is full: the next position is written when there is space
            print(f"the position could not be written: {explain(error)}", flush=True)
