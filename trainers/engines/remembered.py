"""A cache for answers of a scheduler or a host, which may take seconds or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from trainers.machine.environment import now_unix_s

Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """Cache of the latest answer of a scheduler or a host to one question. Thread-safe.

    Args:
        request: Returns the answer; may take seconds and raise OSError.
        fresh_s: Lifetime of an answer.
        outlives_failures: True if the last answer remains valid while the scheduler or host does not answer.
        usable_s: Up to this age an answer is returned immediately, while a thread requests the next one.

    Attributes:
        retry_s: Minimum time between a failure and the next request.

    Requests after a failure run in a thread, too: no HTTP request, and above all not the event loop, may wait
    for a command that takes seconds to fail.
    """

    retry_s = 10.0

    def __init__(
        self,
        request: Callable[[], Answer],
        fresh_s: float,
        *,
        outlives_failures: bool = False,
        usable_s: float = 0.0,
    ) -> None:
        self._request, self._fresh_s, self._outlives_failures = request, fresh_s, outlives_failures
        self._usable_s = usable_s
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._answer_requested_at = float("-inf")
        self._failed_at, self._error = float("-inf"), OSError()
        self._answered_unix_s: float | None = None
        # Time of the last answer before the current failure; None while there is no failure.
        self.silent_since_unix_s: float | None = None
        # Time at which the latest answer was requested.
        self.requested_unix_s: float | None = None
        # Number of changes. An answer is stale if it was requested before the last change.
        self._num_changes = self._num_changes_known = 0

    @property
    def last(self) -> Answer | None:
        """The last answer, however old; None before the first."""
        return self._answer

    def forget(self) -> None:
        """Invalidate the answer."""
        self._num_changes += 1

    def get(self, *, refresh: bool = False) -> Answer:
        """Return the answer. While another thread requests a new one, return the last answer, unless
        `refresh` is True or the answer was invalidated.

        Args:
            refresh: Request a new answer and wait, even after a recent failure.

        Raises:
            OSError: If the scheduler or host does not answer.
        """
        if (answer := self._fresh_answer()) is not None:
            return answer
        accepts_old = (
            not refresh and self._answer is not None and self._num_changes_known == self._num_changes
        )
        if self._failed_at > self._answer_requested_at and not refresh:
            self._request_in_thread()
            return self._answer_after_failure()
        if accepts_old and time.monotonic() - self._answer_requested_at < self._usable_s:
            assert self._answer is not None
            self._request_in_thread()
            return self._answer
        if not self._lock.acquire(blocking=not accepts_old):
            assert self._answer is not None
            return self._answer
        try:
            if (answer := self._fresh_answer()) is not None:
                return answer
            if self._request_now() and self._answer is not None:
                return self._answer
            return self._answer_after_failure()
        finally:
            self._lock.release()

    def _request_in_thread(self) -> None:
        """Ask in a thread, unless another thread is asking."""

        def request() -> None:
            try:
                self._request_now()
            finally:
                self._lock.release()

        if self._lock.acquire(blocking=False):
            try:
                threading.Thread(target=request, name="question", daemon=True).start()
            except RuntimeError:  # too many threads
                self._lock.release()

    def _request_now(self) -> bool:
        """Ask; return False on failure. The caller holds the lock."""
        num_changes, requested_unix_s = self._num_changes, now_unix_s()
        try:
            self._answer = self._request()
        except OSError as error:
            self._failed_at, self._error = time.monotonic(), error
            self.silent_since_unix_s = self._answered_unix_s or now_unix_s()
            return False
        self._answer_requested_at, self._num_changes_known = time.monotonic(), num_changes
        self.requested_unix_s = requested_unix_s
        self._answered_unix_s, self.silent_since_unix_s = now_unix_s(), None
        return True

    def _fresh_answer(self) -> Answer | None:
        """Return the answer if it is fresh, or None.

        Raises:
            OSError: If the last request failed less than `retry_s` ago.
        """
        now = time.monotonic()
        if now - self._failed_at < self.retry_s:
            return self._answer_after_failure()
        is_fresh = (
            now - self._answer_requested_at < self._fresh_s and self._num_changes_known == self._num_changes
        )
        return self._answer if is_fresh else None

    def _answer_after_failure(self) -> Answer:
        if self._answer is None or not self._outlives_failures:
            raise type(self._error)(str(self._error))
        return self._answer
