"""A slow reading, taken in the background with at most a hundredth of a core."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

LARGEST_SHARE = 0.01
FIRST_WAIT_S = 0.3


class SlowReading(Generic[Value]):
    """Caches a function's result; refreshes it in a thread when it is old and requested."""

    def __init__(self, read: Callable[[], Value], every_s: float) -> None:
        self._read = read
        self._every_s = every_s
        self._value: Value | None = None
        self._next_at = 0.0
        self._is_reading = False
        self._lock = threading.Lock()

    def value(self) -> Value | None:
        """Return the newest value; None until the first reading is done."""
        with self._lock:
            is_due = not self._is_reading and time.monotonic() >= self._next_at
            self._is_reading = self._is_reading or is_due
        if is_due:
            thread = threading.Thread(target=self._refresh, name="slow-look", daemon=True)
            thread.start()
            if self._value is None:
                # Usually it is quick: then the first page has it at once.
                thread.join(FIRST_WAIT_S)
        return self._value

    def _refresh(self) -> None:
        started, computed = time.monotonic(), time.thread_time()
        try:
            self._value = self._read()
        finally:
            rest_s = max(self._every_s, (time.thread_time() - computed) / LARGEST_SHARE)
            with self._lock:
                self._next_at = started + rest_s
                self._is_reading = False
