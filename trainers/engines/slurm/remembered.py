"""An answer of the controller that many ask for: asked for once in a while, by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from trainers.machine.clock import now_unix_s

# A controller that is down is left alone for so long.
RETRY_S = 10.0

Answer = TypeVar("Answer")


class SlurmError(OSError):
    """A command of Slurm that was refused, or got no answer; the text is Slurm's own."""


class Remembered(Generic[Answer]):
    """The newest answer to one question; thread-safe.

    Args:
        ask: takes up to seconds; raises SlurmError.
        fresh_s: for so long an answer is not asked for again.
        outlives_failures: the last answer counts also while the controller does not answer.
        usable_s: up to this age an answer is returned at once, while a thread asks for the next one.

    A controller that did not answer last time is asked by a thread, too: no request, least of all the event
    loop, waits for a command that takes seconds to fail.
    """

    def __init__(
        self,
        ask: Callable[[], Answer],
        fresh_s: float,
        *,
        outlives_failures: bool = False,
        usable_s: float = 0.0,
    ) -> None:
        self._ask, self._fresh_s, self._outlives_failures = ask, fresh_s, outlives_failures
        self._usable_s = usable_s
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._asked_at = float("-inf")
        self._failed_at, self._error = float("-inf"), SlurmError()
        self._answered_unix_s: float | None = None
        # When it was answered last, while the controller does not answer; None while it does.
        self.silent_since_unix_s: float | None = None
        # When the newest answer was asked for.
        self.asked_unix_s: float | None = None
        # Counts what has changed; an answer to a question from before does not know of it.
        self._num_changes = self._num_known = 0

    def forget(self) -> None:
        """Note that something has changed: the next answer is a new one."""
        self._num_changes += 1

    def get(self, *, afresh: bool = False) -> Answer:
        """Return the answer; while another thread asks, the last one, unless something has changed since.

        Args:
            afresh: ask and wait, even if the last question was not answered.

        Raises:
            SlurmError: when the controller does not answer.
        """
        if (known := self._known()) is not None:
            return known
        may_be_old = self._answer is not None and self._num_known == self._num_changes
        if self._failed_at > self._asked_at and not afresh:
            self._ask_in_thread()
            return self._in_spite_of_failure()
        if may_be_old and time.monotonic() - self._asked_at < self._usable_s:
            assert self._answer is not None
            self._ask_in_thread()
            return self._answer
        if not self._lock.acquire(blocking=not may_be_old):
            assert self._answer is not None
            return self._answer
        try:
            if (known := self._known()) is not None:
                return known
            if self._ask_now() and self._answer is not None:
                return self._answer
            return self._in_spite_of_failure()
        finally:
            self._lock.release()

    def _ask_in_thread(self) -> None:
        """Ask in the background, unless another thread asks already."""

        def ask() -> None:
            try:
                self._ask_now()
            finally:
                self._lock.release()

        if self._lock.acquire(blocking=False):
            threading.Thread(target=ask, name="slurm-question", daemon=True).start()

    def _ask_now(self) -> bool:
        """Ask, holding the lock; return False if there was no answer."""
        num_changes, asked_unix_s = self._num_changes, now_unix_s()
        try:
            self._answer = self._ask()
        except SlurmError as error:
            self._failed_at, self._error = time.monotonic(), error
            self.silent_since_unix_s = self._answered_unix_s or now_unix_s()
            return False
        self._asked_at, self._num_known = time.monotonic(), num_changes
        self.asked_unix_s = asked_unix_s
        self._answered_unix_s, self.silent_since_unix_s = now_unix_s(), None
        return True

    def _known(self) -> Answer | None:
        """Return what need not be asked for now.

        Raises:
            SlurmError: when the controller did not answer a moment ago.
        """
        now = time.monotonic()
        if now - self._failed_at < RETRY_S:
            return self._in_spite_of_failure()
        is_fresh = now - self._asked_at < self._fresh_s and self._num_known == self._num_changes
        return self._answer if is_fresh else None

    def _in_spite_of_failure(self) -> Answer:
        if self._answer is None or not self._outlives_failures:
            raise SlurmError(str(self._error))
        return self._answer
