"""Which user of this machine made a connection (Linux): asked of the kernel, for one connection at a time.

Where netlink is not permitted (some containers) or has no answers, the tables of all connections in /proc are
read instead. Other users can make these long, so that is not for the event loop: `is_instant`.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import platform
import socket
import struct
import threading
import time
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# A row has 150 bytes: more connections than a machine's ports allow to one address.
_MAX_TABLE_BYTES = 32 * 2**20
# linux/netlink.h, linux/sock_diag.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_NO_COOKIE = 0xFFFFFFFF
_ALL_STATES = 0xFFFFFFFF
_ESTABLISHED = 1
_ANSWER_WITHIN_S = 1.0
# The accounts of services, such as a web server's, come before those of people.
_FIRST_PERSONS_UID = 1000

Address = tuple[str, int]


def is_own(client: Address, server: Address) -> bool:
    """Return True if this user or root made a connection, or the system does not know who made one."""
    return is_of_page(owner(client, server))


def is_of_page(uid: int | None) -> bool:
    """Return True if the owner of a connection is this user or root, or the system does not know owners."""
    return not knows_others() or uid in (0, os.geteuid())


def knows_others() -> bool:
    """Return True if connections of this user are told from those of all others here."""
    return _knows_every_client() and (is_instant() or any(table.exists() for table in _TABLES))


def is_a_services(uid: int | None) -> bool:
    """Return True if the owner of a connection is root, a system account or this user."""
    return uid is not None and (uid < _FIRST_PERSONS_UID or uid == os.geteuid())


def owner(client: Address, server: Address, since_s: float | None = None) -> int | None:
    """Return the user id of whoever made a connection; None if nobody here holds it, or that is unknown.

    Args:
        since_s: when it was accepted (`time.monotonic`): tables that were read later need not be read again.
    """
    if is_instant():
        return _ask_kernel(client, server)
    return _tables.owner(client, server, time.monotonic() if since_s is None else since_s)


@functools.cache
def is_instant() -> bool:
    """Return True if the kernel answers for one connection: it is asked once for one of our own.

    Without its module for TCP it answers for every connection as if there were none.
    """
    if not hasattr(socket, "AF_NETLINK"):
        return False
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as own,
        ):
            return _ask_kernel(own.getsockname(), server.getsockname()) == os.geteuid()
    except OSError:  # a container without loopback
        return False


def is_of_this_machine(host: str) -> bool:
    """Return True if an address is this machine's own, so that any local user can connect from it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _knows_every_client() -> bool:
    """Return True if the kernel knows every loopback client: under WSL it lacks those of Windows."""
    return "microsoft" not in platform.release().lower()


def _ask_kernel(client: Address, server: Address) -> int | None:
    """Return the user id of a connection's client by a request for this one socket (`man 7 sock_diag`)."""
    (family, source, interface), (_, target, _) = _packed(client[0]), _packed(server[0])
    # struct inet_diag_req_v2: family, protocol, extensions, states; then the socket, seen from the client.
    wanted = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ALL_STATES)
    wanted += struct.pack("!HH16s16s", client[1], server[1], source, target)
    wanted += struct.pack("=III", interface, _NO_COOKIE, _NO_COOKIE)
    header = struct.pack("=IHHII", 16 + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_WITHIN_S)
            kernel.send(header + wanted)
            answer = kernel.recv(4096)
    except OSError:  # not permitted, or no descriptor is left
        return None
    if len(answer) < 16 + 72 or struct.unpack_from("=H", answer, 4) != (_SOCK_DIAG_BY_FAMILY,):
        return None
    # struct inet_diag_msg. Without such a connection the kernel answers for a socket that listens there; a
    # closed one has no inode any more, and would read as root's.
    state, ports = answer[16 + 1], struct.unpack_from("!HH", answer, 16 + 4)
    uid, inode = struct.unpack_from("=II", answer, 16 + 64)
    is_it = state == _ESTABLISHED and ports == (client[1], server[1]) and inode != 0
    return int(uid) if is_it else None


def _packed(host: str) -> tuple[socket.AddressFamily, bytes, int]:
    """Return an address as the kernel has it, and the interface that a link-local one belongs to."""
    plain, _, interface = host.partition("%")
    number = ipaddress.ip_address(plain)
    mapped = number.ipv4_mapped if isinstance(number, ipaddress.IPv6Address) else None
    family = socket.AF_INET6 if mapped is None and number.version == 6 else socket.AF_INET
    return family, (mapped or number).packed, socket.if_nametoindex(interface) if interface else 0


class _Tables:
    """The tables of connections; one reading serves all connections that were accepted before it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_s = 0.0
        self._rows = b""

    def owner(self, client: Address, server: Address, since_s: float) -> int | None:
        """Return the user id of a connection's client; None if nobody holds it."""
        with self._lock:
            if self._read_s <= since_s:
                self._read_s = time.monotonic()
                self._rows = b"".join(map(_read_table, _TABLES))
            rows = self._rows
        for wanted in _written(client, server):
            if (at := rows.find(wanted)) >= 0:
                fields = rows[at : rows.find(b"\n", at)].split()
                return int(fields[6]) if int(fields[2], 16) == _ESTABLISHED and fields[8] != b"0" else None
        return None


_tables = _Tables()


def _read_table(table: Path) -> bytes:
    try:
        with table.open("rb") as file:
            return file.read(_MAX_TABLE_BYTES)
    except OSError:  # not there, or not permitted
        return b""


def _written(client: Address, server: Address) -> list[bytes]:
    """Return the beginnings of a connection's row: its addresses as 32-bit words in host byte order.

    An IPv4 connection of an IPv6 socket is in the other table, as mapped addresses.
    """
    family, packed_client, _ = _packed(client[0])
    packed = (packed_client, _packed(server[0])[1])
    forms = (
        [packed]
        if family == socket.AF_INET6
        else [packed, tuple(b"\0" * 10 + b"\xff\xff" + a for a in packed)]
    )
    rows = []
    for form in forms:
        words = ["".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", address)) for address in form]
        rows.append(f" {words[0]}:{client[1]:04X} {words[1]}:{server[1]:04X} ".encode())
    return rows
