"""A launcher's lease: without a sign of the other machines it kills its ranks and ends.

A launcher that is cut off waits in the kernel for the shared folder, for as long as that is away. The thread
here therefore touches no file of it: others renew the lease, and it only counts the time since then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from trainers.engines.local.diagnosis import hangs

# Not longer than the others wait for a report: what they have given up is gone when they go on without it.
LEASE_S = 20.0
POLL_S = 0.25


class Lease:
    """Calls `end` once, in a thread of its own, when nothing has renewed the lease for `LEASE_S`.

    Time in which this process was suspended does not count: all machines may have been. A launcher that was
    suspended alone finds at its next round trip that its start is over.
    """

    def __init__(self, end: Callable[[], None], length_s: float = LEASE_S) -> None:
        self._end = end
        self._length_s = length_s
        self._num_renewals = 0
        self._silent_s = 0.0
        self._must_end = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._enforce, name="lease", daemon=True)

    def begin(self) -> None:
        """Enforce it from now on."""
        self._thread.start()

    def renew(self) -> None:
        """Count from zero again; any thread may call it."""
        self._num_renewals += 1

    @property
    def is_fresh(self) -> bool:
        """True if it was renewed lately, so that this launcher may vouch for others."""
        return self._silent_s < self._length_s / 2

    def end_now(self) -> None:
        """End this launcher: its start is over."""
        self._must_end.set()

    def close(self) -> None:
        """Enforce it no more."""
        self._is_over.set()

    def _enforce(self) -> None:
        seen, looked_at = self._num_renewals, time.monotonic()
        while not self._is_over.is_set():
            is_told = self._must_end.wait(POLL_S)
            now = time.monotonic()
            passed_s, looked_at = hangs.counted_s(now - looked_at), now
            newest = self._num_renewals
            self._silent_s = 0.0 if newest != seen else self._silent_s + passed_s
            seen = newest
            if is_told or self._silent_s >= self._length_s:
                self._end()
                return
