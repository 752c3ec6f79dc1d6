"""The listening socket: how many connections one address may hold, and which end when there are too many.

Counted where they are accepted: one that never begins its TLS handshake is seen nowhere else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ddp_gui.http import local_users
from ddp_gui.http.hosts import network_of

MAX_CONNECTIONS = 600
# A class behind one address: thirty browsers with six connections each.
MAX_OF_ONE_ADDRESS = 200
# Those that are told to end are files until the next turn of the event loop.
MAX_ENDING = 100


class Connection(socket.socket):
    """An accepted connection; it waits while its sender has not finished asking."""

    listener: Listener
    # Whoever shares it counts together; nothing where a proxy stands in front of everybody.
    network: str | None
    waits_since_s: float | None
    is_ending = False
    # Another user of this machine has made it, and nobody logs in here.
    is_foreign = False

    def close(self) -> None:
        """Close it, and make room for another one."""
        self.listener.forget(self.fileno())
        super().close()


class Listener(socket.socket):
    """Accepts connections; ends the one that waited longest where one more would be too many."""

    def __init__(self, family: int, trusted_proxies: str = "", *, is_one_users: bool = False) -> None:
        """Make a socket of this family.

        Args:
            trusted_proxies: addresses and networks, as `--proxy-from` has them: many people are behind each,
                so only the limit of all connections together counts there.
            is_one_users: connections of other users of this machine are told apart.
        """
        super().__init__(family, socket.SOCK_STREAM)
        self._is_one_users = is_one_users
        self._proxies = _networks(trusted_proxies)
        # By number: the event loop wraps the sockets that it was given.
        self._open: dict[int, Connection] = {}
        # Each is a file, and the page needs others.
        self._most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: when there is no room for it.
        """
        accepted, address = super().accept()
        connection = Connection(fileno=accepted.detach())
        connection.listener, connection.waits_since_s = self, time.monotonic()
        connection.network = None if self._is_proxy(address[0]) else network_of(address[0])
        if self._is_one_users and not local_users.is_own(address[:2], connection.getsockname()[:2]):
            # A share of their own: they must not have ours ended.
            connection.is_foreign, connection.network = True, "other users"
        self._open[connection.fileno()] = connection
        if not self._make_room(connection.network):
            connection.close()
            raise ConnectionAbortedError
        return connection, address

    def note(self, number: int, *, waits: bool) -> None:
        """Note that a connection's sender goes on asking, or has finished and waits for us.

        Args:
            number: its file descriptor.
        """
        if (connection := self._open.get(number)) is not None:
            connection.waits_since_s = time.monotonic() if waits else None

    def is_foreign(self, number: int) -> bool:
        """Tell whether a connection is another user's of this machine, who may ask for nothing."""
        connection = self._open.get(number)
        return connection is not None and connection.is_foreign

    def forget(self, number: int) -> None:
        """Forget a connection that is being closed."""
        self._open.pop(number, None)

    def _make_room(self, network: str | None) -> bool:
        """Tell whether the newest connection may stay, where need be in place of another one."""
        counts = Counter(each.network for each in self._open.values() if not each.is_ending)
        if network is not None and counts[network] > MAX_OF_ONE_ADDRESS:
            return self._end_longest_waiting(network)
        if counts.total() > self._most:
            return self._end_longest_waiting(counts.most_common(1)[0][0])
        return True

    def _end_longest_waiting(self, network: str | None) -> bool:
        waiting = {
            each: each.waits_since_s
            for each in self._open.values()
            if each.network == network and each.waits_since_s is not None and not each.is_ending
        }
        if not waiting or len(self._open) > self._most + MAX_ENDING:
            return False
        longest = min(waiting, key=lambda each: waiting[each])
        longest.is_ending = True
        # The event loop finds it at its end and closes it. One that is gone already needs nothing.
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def _is_proxy(self, address: str) -> bool:
        number = ipaddress.ip_address(address.partition("%")[0])
        return any(number in network for network in self._proxies)


def _networks(proxies: str) -> Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the networks named; what is no number is a name that no connection has."""
    found = []
    for part in ["0.0.0.0/0", "::/0"] if proxies == "*" else proxies.split(","):
        with contextlib.suppress(ValueError):
            found.append(ipaddress.ip_network(part.strip()))
    return found
