"""Waiting that somebody can end: each wait looks whether the check was cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.02

Result = TypeVar("Result")


class CancelledError(Exception):
    """Somebody ended the check."""


class TooLateError(Exception):
    """Something was not done when its time was over; says what."""


class Patience:
    """How long may be waited: until somebody cancels, or the time of a job is over."""

    def __init__(self) -> None:
        # No Event: its lock may be held by the very thread that a signal interrupts to set it.
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the check at its next look; may be called by a signal's handler."""
        self.is_cancelled = True

    def wait(self, what: str, is_true: Callable[[], Result | None], deadline: float) -> Result:
        """Return what `is_true` gives as soon as it is true.

        Args:
            deadline: in seconds of `time.monotonic`.

        Raises:
            CancelledError: when somebody ended the check.
            TooLateError: when the deadline has passed.
        """
        while True:
            if self.is_cancelled:
                raise CancelledError
            value = is_true()
            if value:
                return value
            if time.monotonic() > deadline:
                raise TooLateError(what)
            time.sleep(POLL_S)
