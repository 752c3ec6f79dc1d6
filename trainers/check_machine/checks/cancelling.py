"""Cancellable waiting."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment
from trainers.machine.processes import ProcessTree

POLL_S = 0.02

Result = TypeVar("Result")


class CancelledError(Exception):
    """A user has cancelled the check."""


class TooLateError(Exception):
    """A deadline has passed; the message names the missing condition."""


class CancellableWait:
    """Waits for a condition, a deadline or a cancellation."""

    def __init__(self) -> None:
        # A plain flag instead of an Event: a signal handler could interrupt the thread that holds the Event's
        # lock, and deadlock.
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel the check at its next poll. May be called by a signal handler."""
        self.is_cancelled = True

    def raise_if_cancelled(self) -> None:
        """Raise CancelledError if a user has cancelled the check."""
        if self.is_cancelled:
            raise CancelledError

    def wait(self, description: str, is_true: Callable[[], Result | None], deadline: float) -> Result:
        """Return the result of `is_true` as soon as it is truthy.

        Args:
            deadline: In seconds of `time.monotonic`.

        Raises:
            CancelledError: If a user cancels the check.
            TooLateError: If the deadline has passed.
        """
        while True:
            self.raise_if_cancelled()
            value = is_true()
            if value:
                return value
            if time.monotonic() > deadline:
                raise TooLateError(description)
            time.sleep(POLL_S)

    def run(
        self,
        description: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        output: Path,
        errors: Path,
        limit_s: float,
    ) -> int:
        """Run a program in the project's folder; return its exit code. Kills all processes that remain.

        Args:
            variables: Added to its environment.
            output, errors: Files for stdout and stderr.

        Raises:
            CancelledError: If a user cancels the check.
            TooLateError: If the program has not ended after `limit_s`.
        """
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment.for_a_child(variables),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        tree = ProcessTree(process.pid)

        def has_ended() -> bool:
            tree.update()
            return process.poll() is not None

        try:
            self.wait(description, has_ended, time.monotonic() + limit_s)
        finally:
            tree.kill()
            process.wait()
        return process.returncode
