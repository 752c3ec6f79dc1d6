"""The socket the page listens on, and the local users who connect."""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import os
import platform
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ddp_gui.http.front import network_of
from trainers.machine import facilities

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# Maximum size of a table: at 150 bytes per row, more connections than the number of ports allows to one
# address.
_MAX_TABLE_BYTES = 32 * 2**20
# Constants of linux/netlink.h and linux/sock_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_NO_COOKIE = 0xFFFFFFFF
_ALL_STATES = 0xFFFFFFFF
_ESTABLISHED = 1
_KERNEL_TIMEOUT_S = 1.0
# Accounts of services, such as a web server, have user ids below this one.
_FIRST_PERSONS_UID = 1000

Address = tuple[str, int]


def is_own(client: Address, server: Address) -> bool:
    """Return True if this user or root opened a connection, or the system does not report owners."""
    return is_page_owner(owner(client, server))


def is_page_owner(uid: int | None) -> bool:
    """Return True if the owner of a connection is this user or root, or the system does not report owners."""
    return not can_tell_users_apart() or uid in (0, os.geteuid())


def can_tell_users_apart() -> bool:
    """Return True if the system distinguishes this user's connections from all others."""
    return _knows_every_client() and (is_instant() or bool(facilities.existing(*_TABLES)))


def is_system_account(uid: int | None) -> bool:
    """Return True if the owner of a connection is root, a system account or this user."""
    return uid is not None and (uid < _FIRST_PERSONS_UID or uid == os.geteuid())


def owner(client: Address, server: Address, since_s: float | None = None) -> int | None:
    """Return the user id of a connection's client, or None if no local process owns it or it is unknown.

    Args:
        since_s: time (`time.monotonic`) at which the connection was accepted; tables read later are recent
            enough.
    """
    if is_instant():
        return _query_kernel(client, server)
    return _tables.owner(client, server, time.monotonic() if since_s is None else since_s)


@functools.cache
def is_instant() -> bool:
    """Return True if the kernel can look up a single connection; tested once with a connection to itself.

    Without its module for TCP, the kernel answers every query as if the connection did not exist.
    """
    if not facilities.are_available():
        return False
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as connection,
        ):
            return _query_kernel(connection.getsockname(), server.getsockname()) == os.geteuid()
    except OSError:  # a container without loopback
        return False


def is_local_address(host: str) -> bool:
    """Return True if an address belongs to this machine, so that any local user can connect from it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _knows_every_client() -> bool:
    """Return True if the kernel knows every loopback client; in WSL it does not know clients in Windows."""
    return "microsoft" not in platform.release().lower()


def _query_kernel(client: Address, server: Address) -> int | None:
    """Return the user id of a connection's client by a query for this one socket (`man 7 sock_diag`)."""
    (family, source, interface), (_, target, _) = _pack_address(client[0]), _pack_address(server[0])
    # struct inet_diag_req_v2: family, protocol, extensions, states, then the socket from the client's side.
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ALL_STATES)
    request += struct.pack("!HH16s16s", client[1], server[1], source, target)
    request += struct.pack("=III", interface, _NO_COOKIE, _NO_COOKIE)
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with facilities.netlink(_NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_KERNEL_TIMEOUT_S)
            kernel.send(header + request)
            response = kernel.recv(4096)
    except OSError:  # not permitted, or out of descriptors
        return None
    if len(response) < 16 + 72 or struct.unpack_from("=H", response, 4) != (_SOCK_DIAG_BY_FAMILY,):
        return None
    # struct inet_diag_msg. If the connection does not exist, the kernel answers for a listening socket at the
    # address. A closed connection has inode 0 and user id 0, which must not count as root.
    state, ports = response[16 + 1], struct.unpack_from("!HH", response, 16 + 4)
    uid, inode = struct.unpack_from("=II", response, 16 + 64)
    is_match = state == _ESTABLISHED and ports == (client[1], server[1]) and inode != 0
    return int(uid) if is_match else None


def _pack_address(host: str) -> tuple[socket.AddressFamily, bytes, int]:
    """Return the family and the bytes of an IP address, and the interface index of a link-local one."""
    ip_text, _, interface = host.partition("%")
    ip = ipaddress.ip_address(ip_text)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    family = socket.AF_INET6 if mapped is None and ip.version == 6 else socket.AF_INET
    return family, (mapped or ip).packed, socket.if_nametoindex(interface) if interface else 0


class _Tables:
    """The kernel's tables of connections. One reading serves all connections that were accepted earlier."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_s = 0.0
        self._rows = b""

    def owner(self, client: Address, server: Address, since_s: float) -> int | None:
        """Return the user id of a connection's client, or None if no process owns it."""
        with self._lock:
            if self._read_s <= since_s:
                self._read_s = time.monotonic()
                self._rows = b"".join(map(_read_table, facilities.existing(*_TABLES)))
            rows = self._rows
        for prefix in _row_prefixes(client, server):
            if (start := rows.find(prefix)) >= 0:
                fields = rows[start : rows.find(b"\n", start)].split()
                return int(fields[6]) if int(fields[2], 16) == _ESTABLISHED and fields[8] != b"0" else None
        return None


_tables = _Tables()


def _read_table(table: Path) -> bytes:
    try:
        with table.open("rb") as file:
            return file.read(_MAX_TABLE_BYTES)
    except OSError:  # missing, or not permitted
        return b""


def _row_prefixes(client: Address, server: Address) -> list[bytes]:
    """Return the possible beginnings of a connection's row: its addresses as 32-bit words in host byte order.

    An IPv4 connection of an IPv6 socket is in the table for IPv6, with mapped addresses.
    """
    family, packed_client, _ = _pack_address(client[0])
    packed = (packed_client, _pack_address(server[0])[1])
    forms = (
        [packed]
        if family == socket.AF_INET6
        else [packed, tuple(b"\0" * 10 + b"\xff\xff" + a for a in packed)]
    )
    rows = []
    for addresses in forms:
        hex_words = [
            "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", address)) for address in addresses
        ]
        rows.append(f" {hex_words[0]}:{client[1]:04X} {hex_words[1]}:{server[1]:04X} ".encode())
    return rows


MAX_CONNECTIONS = 600
# Maximum number of connections per address: a class may have thirty browsers with six connections each.
MAX_PER_ADDRESS = 200
# Spare file descriptors: closed connections keep theirs until the next iteration of the event loop.
MAX_ENDING = 100
# Maximum number of connections to accept in one iteration of the event loop, so that a client that opens
# connections fast cannot block other work.
MAX_ACCEPTED_AT_ONCE = 32


class TcpConnection(socket.socket):
    """An accepted connection; it is waiting while its request is incomplete."""

    listener: Listener
    # Network of the client, for the limit per network; None behind a trusted proxy.
    network: str | None
    since_s: float
    waits_since_s: float | None
    is_ending = False
    # True if another user of this machine opened the connection to a page without login.
    is_foreign = False
    # True if a client other than the proxy opened the connection to a page whose proxy authenticates users.
    bypasses_proxy = False
    # Function, to be called in a thread, that identifies the client before reading; None: already identified.
    identify: Callable[[], None] | None = None

    def close(self) -> None:
        """Close it and free its slot."""
        self.listener.forget(self.fileno())
        super().close()


class Listener(socket.socket):
    """Accepts connections; at the limit it closes the connection that has waited longest."""

    def __init__(
        self,
        family: int,
        trusted_proxies: str = "",
        *,
        is_one_users: bool = False,
        trusts_proxy_names: bool = False,
        lets_phones_in: bool = False,
    ) -> None:
        """Create a socket of this family.

        Args:
            trusted_proxies: addresses and networks in the form of `--proxy-from`: each may serve many users,
                so only the total limit applies.
            is_one_users: identify connections of other users of this machine.
            trusts_proxy_names: the proxies authenticate the users, so identify connections from other
                clients.
            lets_phones_in: connections of unknown clients are served by a separate app.
        """
        super().__init__(family, socket.SOCK_STREAM)
        self._is_one_users = is_one_users
        self._trusts_proxy_names = trusts_proxy_names
        self.lets_phones_in = lets_phones_in
        self._proxies = _parse_networks(trusted_proxies)
        # Connections by file descriptor, because the event loop wraps the sockets that it received.
        self._open: dict[int, TcpConnection] = {}
        self._num_accepted = 0
        # A thread for identification, if the system looks up clients slowly.
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="connections")
        # Maximum number of connections: each takes a file descriptor, and the page needs descriptors for
        # other files.
        self._max_connections = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection that is within the limits.

        Raises:
            BlockingIOError: if no connection waits, or the limit per iteration of the event loop is reached.
        """
        while self._num_accepted < MAX_ACCEPTED_AT_ONCE:
            self._num_accepted += 1
            connection, address = self._accept_any()
            if self._make_room(connection):
                return connection, address
            connection.close()
        self._num_accepted = 0
        raise BlockingIOError

    def _accept_any(self) -> tuple[TcpConnection, Any]:
        accepted, address = super().accept()
        connection = TcpConnection(fileno=accepted.detach())
        connection.listener, connection.since_s = self, time.monotonic()
        connection.waits_since_s = connection.since_s
        connection.network = None if self._is_proxy(address[0]) else network_of(address[0])
        identify = functools.partial(self._identify, connection, address[:2], connection.getsockname()[:2])
        if is_instant():
            identify()
        elif self._is_one_users or self._trusts_proxy_names:
            connection.identify = identify
        self._open[connection.fileno()] = connection
        return connection, address

    def set_waiting(self, descriptor: int, *, waits: bool) -> None:
        """Note whether the server waits for the client: for the rest of a request, or the next one.

        Args:
            descriptor: the connection's file descriptor.
        """
        if (connection := self._open.get(descriptor)) is not None:
            connection.waits_since_s = time.monotonic() if waits else None

    def is_foreign(self, descriptor: int) -> bool:
        """Return True if a connection belongs to another user of this machine, who has no access."""
        connection = self._open.get(descriptor)
        if connection is None:
            return False
        return connection.is_foreign or (self._is_one_users and connection.identify is not None)

    def bypasses_proxy(self, descriptor: int) -> bool:
        """Return True if a connection was not opened by the proxy and so must not name a user."""
        connection = self._open.get(descriptor)
        if not self._trusts_proxy_names:
            return False
        return connection is None or connection.bypasses_proxy or connection.identify is not None

    def identification(self, descriptor: int) -> Callable[[], None] | None:
        """Return a function, for a thread, that identifies the client; None if already identified."""
        connection = self._open.get(descriptor)
        return None if connection is None else connection.identify

    def forget(self, descriptor: int) -> None:
        """Remove a connection that is being closed."""
        self._open.pop(descriptor, None)

    def _make_room(self, newest: TcpConnection) -> bool:
        """Return True if the new connection can be kept; if necessary, closes another connection."""
        counts = Counter(connection.network for connection in self._open.values() if not connection.is_ending)
        network = newest.network
        if network is not None and counts[network] > MAX_PER_ADDRESS:
            # Another user's requests are only refused: thousands of connections must cost almost nothing.
            is_refused_anyway = newest.is_foreign and not self.lets_phones_in
            return not is_refused_anyway and self._end_longest_waiting(network)
        if counts.total() > self._max_connections:
            return self._end_longest_waiting(counts.most_common(1)[0][0])
        return True

    def _end_longest_waiting(self, network: str | None) -> bool:
        waiting = {
            connection: connection.waits_since_s
            for connection in self._open.values()
            if connection.network == network
            and connection.waits_since_s is not None
            and not connection.is_ending
        }
        if not waiting or len(self._open) > self._max_connections + MAX_ENDING:
            return False
        longest = min(waiting, key=lambda connection: waiting[connection])
        longest.is_ending = True
        # The event loop then reads end-of-file and closes. An already closed connection raises OSError.
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def _identify(self, connection: TcpConnection, client: Address, server: Address) -> None:
        """Store the user who opened a connection; other users of this machine are counted separately."""
        is_local = connection.network is not None and is_local_address(client[0])
        uid = owner(client, server, connection.since_s)
        is_own = is_page_owner(uid)
        if self._is_one_users and not is_own:
            connection.is_foreign = True
            is_local = is_local or not self.lets_phones_in
        if self._trusts_proxy_names and not self._is_from_proxy(connection, client[0], uid):
            connection.bypasses_proxy, connection.network = True, "past the proxy"
        elif is_local and not is_own:
            connection.network = f"user {uid}"
        connection.identify = None

    def _is_from_proxy(self, connection: TcpConnection, address: str, uid: int | None) -> bool:
        """Return True if a proxy opened a connection; a local proxy is recognised by its system account."""
        if not self._is_proxy(address):
            return False
        if is_local_address(address):
            # If the connection was closed meanwhile, the port may belong to another connection's owner.
            return is_system_account(uid) and _is_connected(connection)
        return True

    def _is_proxy(self, address: str) -> bool:
        ip = ipaddress.ip_address(address.partition("%")[0])
        return any(ip in network for network in self._proxies)


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _parse_networks(proxies: str) -> Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the networks of a list; an entry that is not an address matches no connection."""
    networks = []
    for entry in ["0.0.0.0/0", "::/0"] if proxies == "*" else proxies.split(","):
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.ip_network(entry.strip()))
    return networks
