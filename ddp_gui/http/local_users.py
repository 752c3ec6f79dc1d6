"""Which user of this machine made a connection, by the system's table of connections (Linux)."""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
# Closed connections have no owner in the table, and would read as root's.
_NO_INODE = "0"
# The accounts of services, such as a web server's, come before those of people.
_FIRST_PERSONS_UID = 1000


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Tell whether this user or root made a connection; True if the system has no such table."""
    if not knows_others():
        return True
    return owner(client, server) in (0, os.geteuid())


def knows_others() -> bool:
    """Tell whether connections of this user are told from those of everybody else here."""
    return _knows_every_client() and any(table.exists() for table in _TABLES)


def is_a_services(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Tell whether root, a system account or this user made a connection; False if that cannot be told."""
    uid = owner(client, server)
    return uid is not None and (uid < _FIRST_PERSONS_UID or uid == os.geteuid())


def owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user id of whoever made a connection; None if nobody here holds it, or there is no table."""
    wanted = [_written(client), _written(server)]
    for table in (table for table in _TABLES if table.exists()):
        with table.open(encoding="ascii") as rows:
            for row in rows:
                fields = row.split()
                if fields[1:3] == wanted:
                    is_open = fields[3] == _ESTABLISHED and fields[9] != _NO_INODE
                    return int(fields[7]) if is_open else None
    return None


def is_of_this_machine(host: str) -> bool:
    """Tell whether an address is this machine's own, so that any local user can connect from it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _knows_every_client() -> bool:
    """Tell whether the table has every loopback client: under WSL it lacks those of Windows."""
    return "microsoft" not in platform.release().lower()


def _written(address: tuple[str, int]) -> str:
    """Return an address as the table has it: 32-bit words in host byte order."""
    host, port = address[0].partition("%")[0], address[1]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
