"""Rate limits of login attempts: after some failures each further attempt has to wait longer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ddp_gui.http.hosts import network_of

# A class behind one address must not be locked out, so an address may fail more often than a name.
FREE_FAILURES_OF_A_NAME = 5
FREE_FAILURES_OF_AN_ADDRESS = 30
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


class Failures:
    """Failed tries by key; remembers a bounded number of them for a bounded time."""

    def __init__(self, free: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._found: OrderedDict[str, _Failures] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Return the seconds until the next attempt is allowed."""
        self._forget_old()
        found = self._found.get(key)
        return max(0.0, found.free_again_s - self._clock()) if found else 0.0

    def add(self, key: str) -> None:
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

    def take_back(self, key: str) -> None:
        """Remove the newest failure."""
        found = self._found.get(key)
        if found is not None:
            found.count -= 1
            found.free_again_s = 0.0
            if found.count <= 0:
                del self._found[key]

    def forget(self, key: str) -> None:
        """Forget the failures of this key."""
        self._found.pop(key, None)

    def _forget_old(self) -> None:
        oldest_s = self._clock() - FORGOTTEN_AFTER_S
        while self._found and next(iter(self._found.values())).newest_s < oldest_s:
            self._found.popitem(last=False)


class LoginLimits:
    """The limits by name and by address together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = Failures(FREE_FAILURES_OF_A_NAME, clock)
        self._addresses = Failures(FREE_FAILURES_OF_AN_ADDRESS, clock)

    def begin(self, name: str, address: str) -> None:
        """Count an attempt as failed before it is checked: concurrent attempts must not all pass.

        Raises:
            TooManyTriesError: when it has to wait.
        """
        network = network_of(address)
        wait_s = max(self._names.wait_s(name), self._addresses.wait_s(network))
        if wait_s > 0:
            raise TooManyTriesError(wait_s)
        self._names.add(name)
        self._addresses.add(network)

    def succeed(self, name: str, address: str) -> None:
        """The attempt succeeded; other failures from this address stay counted."""
        self._names.forget(name)
        self._addresses.take_back(network_of(address))

    def withdraw(self, name: str, address: str) -> None:
        """The attempt was not checked."""
        self._names.take_back(name)
        self._addresses.take_back(network_of(address))
