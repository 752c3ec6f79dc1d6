"""A thread that does the same again and again, survives what goes wrong in one pass, and says so."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from trainers.machine.os_errors import explain

log = logging.getLogger(__name__)

# A pass takes milliseconds; one that waits for another page's lock some seconds.
STUCK_AFTER_S = 30.0
COMPLAIN_EVERY_S = 60.0


class Passes:
    """Calls `one_pass`, which returns how many seconds to rest, until it is closed."""

    def __init__(self, name: str, one_pass: Callable[[], float], rest_after_error_s: float = 1.0) -> None:
        self._name = name
        self._one_pass = one_pass
        self._rest_after_error_s = rest_after_error_s
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._error: str | None = None
        self._began_at: float | None = None
        self._complained_at = float("-inf")

    @property
    def is_alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def trouble(self) -> str | None:
        """What keeps it from doing its work, in words; None where nothing does, or nobody has begun it."""
        if self._thread is None or self._is_closed:
            return None
        if not self._thread.is_alive():
            return "The thread that does this has ended. Restart the page."
        began_at = self._began_at
        if began_at is not None and (takes_s := time.monotonic() - began_at) > STUCK_AFTER_S:
            return f"A pass that began {takes_s:.0f} seconds ago has not finished: a disk may hang."
        return self._error

    def begin(self) -> None:
        """Begin, in a thread, until `close`."""
        self._thread = threading.Thread(target=self._go_on, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the next pass come at once."""
        self._wake.set()

    def close(self) -> None:
        """End it, after the pass that may be going on."""
        self._is_closed = True
        self._wake.set()

    def _go_on(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            self._began_at = time.monotonic()
            try:
                rest_s = self._one_pass()
                self._error = None
            except Exception as error:  # noqa: BLE001 - everybody hangs on this thread: the next pass must come
                self._tell(error)
                rest_s = self._rest_after_error_s
            self._began_at = None
            self._wake.wait(rest_s)

    def _tell(self, error: Exception) -> None:
        if time.monotonic() - self._complained_at > COMPLAIN_EVERY_S:
            self._complained_at = time.monotonic()
            log.error("%s: a pass failed, trying again: %s", self._name, error, exc_info=error)
        is_said = isinstance(error, (OSError, ValueError)) and str(error)
        # Words that nobody has written for people may hold anything: those stand in the log only.
        self._error = explain(error) if is_said else f"An error of the page itself ({type(error).__name__})."
