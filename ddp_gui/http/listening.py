"""The listening socket, with limits on connections per address; the longest-waiting one is closed first.

They are counted when accepted: one that never begins its TLS handshake is visible nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ddp_gui.http import local_users
from ddp_gui.http.hosts import network_of
from ddp_gui.http.local_users import Address

MAX_CONNECTIONS = 600
# A class behind one address: thirty browsers with six connections each.
MAX_OF_ONE_ADDRESS = 200
# Closed connections keep their file descriptors until the next turn of the event loop.
MAX_ENDING = 100
# Then other work of the event loop gets its turn: whoever opens connections fast must not keep it.
MAX_IN_A_ROW = 32


class Connection(socket.socket):
    """An accepted connection; it is waiting while its request is incomplete."""

    listener: Listener
    # Clients that share it are counted together; None behind a trusted proxy.
    network: str | None
    since_s: float
    waits_since_s: float | None
    is_ending = False
    # Made by another user of this machine, on a page without a login.
    is_foreign = False
    # Made by anybody but the proxy, where the proxy says who is asking.
    is_past_proxy = False
    # What finds out who made it, for a thread, before anything is read; None: that is known.
    identify: Callable[[], None] | None = None

    def close(self) -> None:
        """Close it and free its slot."""
        self.listener.forget(self.fileno())
        super().close()


class Listener(socket.socket):
    """Accepts connections; at the limit it closes the one that has waited longest."""

    def __init__(
        self,
        family: int,
        trusted_proxies: str = "",
        *,
        is_one_users: bool = False,
        believes_names: bool = False,
        lets_phones_in: bool = False,
    ) -> None:
        """Create a socket of this family.

        Args:
            trusted_proxies: addresses and networks, as `--proxy-from` has them: many people are behind each,
                so only the total limit applies there.
            is_one_users: identify connections of other users of this machine.
            believes_names: the proxies say who is asking, so identify connections of anybody else.
            lets_phones_in: connections of strangers are served, too, in their own way.
        """
        super().__init__(family, socket.SOCK_STREAM)
        self._is_one_users = is_one_users
        self._believes_names = believes_names
        self.lets_phones_in = lets_phones_in
        self._proxies = _networks(trusted_proxies)
        # By file descriptor: the event loop wraps the sockets that it was given.
        self._open: dict[int, Connection] = {}
        self._in_a_row = 0
        # Of its one thread, where the system answers slowly who made a connection.
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="connections")
        # Each is a file descriptor, and the page needs others.
        self._most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection for which there is room.

        Raises:
            BlockingIOError: when there is none, or some were accepted in a row.
        """
        while self._in_a_row < MAX_IN_A_ROW:
            self._in_a_row += 1
            connection, address = self._accept_any()
            if self._make_room(connection):
                return connection, address
            connection.close()
        self._in_a_row = 0
        raise BlockingIOError

    def _accept_any(self) -> tuple[Connection, Any]:
        accepted, address = super().accept()
        connection = Connection(fileno=accepted.detach())
        connection.listener, connection.since_s = self, time.monotonic()
        connection.waits_since_s = connection.since_s
        connection.network = None if self._is_proxy(address[0]) else network_of(address[0])
        identify = functools.partial(self._identify, connection, address[:2], connection.getsockname()[:2])
        if local_users.is_instant():
            identify()
        elif self._is_one_users or self._believes_names:
            connection.identify = identify
        self._open[connection.fileno()] = connection
        return connection, address

    def note(self, number: int, *, waits: bool) -> None:
        """Note whether a connection's sender is still sending, or waits for a response.

        Args:
            number: its file descriptor.
        """
        if (connection := self._open.get(number)) is not None:
            connection.waits_since_s = time.monotonic() if waits else None

    def is_foreign(self, number: int) -> bool:
        """Tell whether a connection belongs to another user of this machine, who has no access."""
        connection = self._open.get(number)
        if connection is None:
            return False
        return connection.is_foreign or (self._is_one_users and connection.identify is not None)

    def is_past_proxy(self, number: int) -> bool:
        """Tell whether somebody else than the proxy made a connection, who must not name a person."""
        connection = self._open.get(number)
        if not self._believes_names:
            return False
        return connection is None or connection.is_past_proxy or connection.identify is not None

    def identification(self, number: int) -> Callable[[], None] | None:
        """Return what finds out who made a connection, for a thread; None if that is known."""
        connection = self._open.get(number)
        return None if connection is None else connection.identify

    def forget(self, number: int) -> None:
        """Forget a connection that is being closed."""
        self._open.pop(number, None)

    def _make_room(self, newest: Connection) -> bool:
        """Return True if the newest connection may stay, if necessary by closing another one."""
        counts = Counter(each.network for each in self._open.values() if not each.is_ending)
        network = newest.network
        if network is not None and counts[network] > MAX_OF_ONE_ADDRESS:
            # Another user's requests are only refused: thousands of connections must cost next to nothing.
            is_refused_anyway = newest.is_foreign and not self.lets_phones_in
            return not is_refused_anyway and self._end_longest_waiting(network)
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
        # The event loop then reads the end and closes it. One that is already gone needs nothing.
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def _identify(self, connection: Connection, client: Address, server: Address) -> None:
        """Note which user made a connection; other users of this machine have shares of their own."""
        is_here = connection.network is not None and local_users.is_of_this_machine(client[0])
        uid = local_users.owner(client, server, connection.since_s)
        is_own = local_users.is_of_page(uid)
        if self._is_one_users and not is_own:
            connection.is_foreign = True
            is_here = is_here or not self.lets_phones_in
        if self._believes_names and not self._is_proxys(connection, client[0], uid):
            connection.is_past_proxy, connection.network = True, "past the proxy"
        elif is_here and not is_own:
            connection.network = f"user {uid}"
        connection.identify = None

    def _is_proxys(self, connection: Connection, address: str, uid: int | None) -> bool:
        """Tell whether a proxy made a connection; one on this machine is told by its system account."""
        if not self._is_proxy(address):
            return False
        if local_users.is_of_this_machine(address):
            # Had it been closed meanwhile, the answer might be for another one from the same port.
            return local_users.is_a_services(uid) and _is_connected(connection)
        return True

    def _is_proxy(self, address: str) -> bool:
        number = ipaddress.ip_address(address.partition("%")[0])
        return any(number in network for network in self._proxies)


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _networks(proxies: str) -> Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the networks named; an entry that is not an address matches no connection."""
    found = []
    for part in ["0.0.0.0/0", "::/0"] if proxies == "*" else proxies.split(","):
        with contextlib.suppress(ValueError):
            found.append(ipaddress.ip_network(part.strip()))
    return found
