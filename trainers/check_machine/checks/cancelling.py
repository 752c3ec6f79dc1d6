"""Cancellable waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.02

Result = TypeVar("Result")


class CancelledError(Exception):
    """A user has cancelled the check."""


class TooLateError(Exception):
    """A deadline has passed; the message names the missing condition."""


class CancellableWait:
    """Waits for a condition, a deadline or a cancellation."""

    def __init__(self) -> None:
        # Not an Event: a signal handler could interrupt the thread that holds its lock, and deadlock.
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel the check at its next poll. May be called by a signal handler."""
        self.is_cancelled = True

    def wait(self, what: str, is_true: Callable[[], Result | None], deadline: float) -> Result:
        """Return the result of `is_true` as soon as it is truthy.

        Args:
            deadline: In seconds of `time.monotonic`.

        Raises:
            CancelledError: If a user cancels the check.
            TooLateError: If the deadline has passed.
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
