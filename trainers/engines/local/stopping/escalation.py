"""When a run is ended by force: the rule, as arithmetic over clocks and what the run does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainers.contract import events
from trainers.contract.events import State

Action = Literal["wait", "terminate", "kill"]

# From the stop request; with SIGTERM's time and the check after it 15 s are the most.
STOP_GRACE_S = 8.0
# A run that begins to save late gets some more.
SAVE_GRACE_S = 4.0
LATEST_S = 11.0
TERM_GRACE_S = 2.0
# A run at work, that compiles say, is waited for; so long after its last sign of life, and no longer at all.
LIFE_GRACE_S = 3.0
LONGEST_WORK_S = 120.0
# A run that has said its last word and does not end: from then, and from a stop request.
EXIT_GRACE_S = 30.0
STOPPED_EXIT_S = 9.5
STOPPED_EXIT_GRACE_S = 5.0
LATE_EXIT_GRACE_S = 1.5
# What is written has to reach the disk, during which nothing grows.
FLUSH_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The checkpoint that is being written: its bytes so far, and whether a process works on a disk."""

    num_bytes: int = 0
    is_at_disk: bool = False


class Escalation:
    """Turns a stop request that is not obeyed, or an end that hangs, into SIGTERM, then into SIGKILL."""

    def __init__(self, now: float) -> None:
        self._requested_at: float | None = None
        self._unsaved_at: float | None = None
        self._changed_at = now
        self._saving = Saving()
        self._grown_at = self._moved_at = 0.0
        self._alive_at = -math.inf
        self._terminated_at: float | None = None
        self.was_told_to_end = False

    @property
    def is_stop_requested(self) -> bool:
        return self._requested_at is not None

    @property
    def is_forced(self) -> bool:
        return self._terminated_at is not None

    def request_stop(self, at: float, *, save: bool) -> None:
        """Note a stop request; the first one counts, and the first without saving."""
        if self._requested_at is None:
            self._requested_at = at
        if not save and self._unsaved_at is None:
            self._unsaved_at = at

    def take_back(self) -> None:
        """Note that a stop was refused, and the run goes on."""
        self._requested_at = self._unsaved_at = None
        self._alive_at = -math.inf

    def state_changed(self, at: float) -> None:
        """Note that the run is in a new state."""
        self._changed_at = at

    def note_life(self, at: float) -> None:
        """Note that the run is at work, and so may still come to where it hears the request."""
        if self._requested_at is not None and at < self._requested_at + LONGEST_WORK_S:
            self._alive_at = at

    def depends_on_life(self, state: State, now: float) -> bool:
        """Tell whether force will soon be used, unless the run is at work."""
        if self._requested_at is None or self._unsaved_at is not None or self.is_forced:
            return False
        since_s = now - self._requested_at
        return state in ("running", "paused") and STOP_GRACE_S - LIFE_GRACE_S <= since_s < LONGEST_WORK_S

    def is_overdue(self, now: float) -> bool:
        """Tell whether the request should have been heard by now."""
        return self._requested_at is not None and now > self._requested_at + STOP_GRACE_S

    def note_saving(self, saving: Saving, at: float) -> None:
        """Note how far the checkpoint is that is being written."""
        if saving.num_bytes != self._saving.num_bytes:
            self._grown_at = self._moved_at = at
        elif saving.num_bytes and saving.is_at_disk and at - self._grown_at < FLUSH_S:
            self._moved_at = at
        self._saving = saving

    def decide(self, state: State, now: float) -> Action:
        """Say what is to be done now."""
        if self._terminated_at is not None:
            return "kill" if now - self._terminated_at > TERM_GRACE_S else "wait"
        deadline = self._deadline(state)
        if deadline is None or (now <= deadline and not self.was_told_to_end):
            return "wait"
        self._terminated_at = now
        return "terminate"

    def _deadline(self, state: State) -> float | None:
        if state not in events.LIVE_STATES:
            return self._exit_deadline()
        if self._requested_at is None:
            return None
        if state in ("queued", "starting"):
            return self._requested_at  # nothing has been trained that could be saved
        if self._unsaved_at is not None:
            return self._unsaved_at + STOP_GRACE_S
        deadline = max(self._requested_at, self._moved_at) + STOP_GRACE_S
        if state != "stopping":
            return max(deadline, self._alive_at + LIFE_GRACE_S)
        # One that was at work until it heard the request has its time to save from then.
        is_late = self._changed_at > self._alive_at + LIFE_GRACE_S
        latest = self._requested_at + LATEST_S if is_late else math.inf
        return max(deadline, min(self._changed_at + SAVE_GRACE_S, latest))

    def _exit_deadline(self) -> float:
        if self._requested_at is None:
            return self._changed_at + EXIT_GRACE_S
        if self._changed_at > self._requested_at + LATEST_S:
            return self._changed_at + STOPPED_EXIT_GRACE_S  # it was allowed to save for longer
        return max(self._requested_at + STOPPED_EXIT_S, self._changed_at + LATE_EXIT_GRACE_S)
