"""Says in the log how far a long piece of work has come: a rank that prepares data is not one that hangs."""

from __future__ import annotations

import logging
import time

from trainers.data.own.common import limits

log = logging.getLogger(__name__)

EVERY_S = 2.0


class Progress:
    """Counts what is done and logs it now and then.

    Args:
        doing: what is done to which things ("images decoded").
        total: how many there are; 0 when nobody knows.
        scale: what a count is divided by for people (1e6 for megabytes).
    """

    def __init__(self, doing: str, total: int, *, scale: float = 1.0) -> None:
        self._doing = doing
        self._total = total
        self._scale = scale
        self._done = 0
        self._started = self._said = time.monotonic()

    def add(self, count: int) -> None:
        """Count some more; ends the work when its time is over."""
        limits.check_time()
        self._done += count
        now = time.monotonic()
        if now - self._said >= EVERY_S:
            self._said = now
            log.info("own data: %s", self._words(now))

    def finish(self) -> None:
        """Say the sum and how long it took, where it took long."""
        now = time.monotonic()
        if now - self._started >= EVERY_S:
            log.info("own data: %s; took %.1f s", self._words(now), now - self._started)

    def _words(self, now: float) -> str:
        speed = self._done / max(now - self._started, 1e-9) / self._scale
        of = f" of {self._total / self._scale:,.0f}" if self._total else ""
        return f"{self._done / self._scale:,.0f}{of} {self._doing}, {speed:,.0f} a second"
