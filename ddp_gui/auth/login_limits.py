"""Rate limits of login attempts: after some failures each further attempt has to wait longer."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# Of a name from one address or device.
FREE_FAILURES = 5
# Of a name from all addresses: guesses that are spread over many.
FREE_FAILURES_OF_A_NAME = 50
LONGEST_WAIT_S = 60.0
FORGOTTEN_AFTER_S = 15 * 60.0
MAX_REMEMBERED = 10_000


class TooManyTriesError(Exception):
    """Too many failed attempts; says how long to wait."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"wait {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass
class _Failures:
    count: int = 0
    newest_s: float = 0.0
    free_again_s: float = 0.0


Key = tuple[str, ...]


class Failures:
    """Failed tries by key; remembers a bounded number of them for a bounded time."""

    def __init__(self, free: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._found: OrderedDict[Key, _Failures] = OrderedDict()

    def wait_s(self, key: Key) -> float:
        """Return the seconds until the next attempt is allowed."""
        self._forget_old()
        found = self._found.get(key)
        return max(0.0, found.free_again_s - self._clock()) if found else 0.0

    def add(self, key: Key) -> None:
        """Count a failure."""
        found = self._found.setdefault(key, _Failures())
        self._found.move_to_end(key)
        found.count += 1
        found.newest_s = now = self._clock()
        beyond = found.count - self._free
        if beyond >= 0:
            found.free_again_s = now + min(LONGEST_WAIT_S, 2.0 ** min(beyond, 10))
        while len(self._found) > MAX_REMEMBERED:
            self._found.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Forget the failures of this key."""
        self._found.pop(key, None)

    def _forget_old(self) -> None:
        oldest_s = self._clock() - FORGOTTEN_AFTER_S
        while self._found and next(iter(self._found.values())).newest_s < oldest_s:
            self._found.popitem(last=False)


class LoginLimits:
    """The limits of a name from one source, and of a name from all strangers together; thread-safe.

    There is none of an address: one phone's failures must not lock out a class behind the same address. A
    source is an address, or a device on which the account has logged in before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._pairs = Failures(FREE_FAILURES, clock)
        self._names = Failures(FREE_FAILURES_OF_A_NAME, clock)

    def check(self, name: str, source: str, *, is_known: bool = False) -> None:
        """Require that a password may be tried.

        Args:
            is_known: the source is a known device, so that failures elsewhere do not count.

        Raises:
            TooManyTriesError: when it has to wait.
        """
        with self._lock:
            wait_s = self._pairs.wait_s((name, source))
            if not is_known:
                wait_s = max(wait_s, self._names.wait_s((name,)))
        if wait_s > 0:
            raise TooManyTriesError(wait_s)

    def count(self, name: str, source: str, *, is_right: bool, is_known: bool = False) -> None:
        """Count an attempt that was checked; a right password clears the failures of its source."""
        with self._lock:
            if is_right:
                self._pairs.forget((name, source))
                return
            self._pairs.add((name, source))
            if not is_known:
                self._names.add((name,))
