"""A rate limit per person for expensive actions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ddp_gui.auth.current_user import current_user


class RateLimit:
    """At most `most` times in `within_s` seconds for each person; no limit without a login."""

    def __init__(
        self, what: str, most: int, within_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._most = most
        self._within_s = within_s
        self._clock = clock
        # As many keys as there are accounts.
        self._begun: dict[str, deque[float]] = {}

    def count(self) -> None:
        """Count one more by the current user.

        Raises:
            ValueError: when it is one too many; says how long to wait.
        """
        name, now = current_user().name, self._clock()
        if not name:
            return
        begun = self._begun.setdefault(name, deque())
        while begun and now - begun[0] > self._within_s:
            begun.popleft()
        if len(begun) >= self._most:
            wait_s = self._within_s - (now - begun[0])
            raise ValueError(
                f"you requested {self._what} {len(begun)} times within {self._within_s:.0f} seconds: "
                f"wait {max(1, round(wait_s))} seconds"
            )
        begun.append(now)
