"""Which user of this machine made a connection, by the system's table of connections (Linux)."""

from __future__ import annotations

import os
import platform
import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
# Closed connections have no owner in the table, and would read as root's.
_NO_INODE = "0"


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Tell whether this user or root made a connection; True if the system has no such table."""
    wanted = [_written(client), _written(server)]
    tables = [table for table in _TABLES if table.exists()] if _knows_every_client() else []
    for table in tables:
        with table.open(encoding="ascii") as rows:
            for row in rows:
                fields = row.split()
                if fields[1:3] == wanted:
                    is_open = fields[3] == _ESTABLISHED and fields[9] != _NO_INODE
                    return is_open and int(fields[7]) in (0, os.geteuid())
    return not tables


def _knows_every_client() -> bool:
    """Tell whether the table has every loopback client: under WSL it lacks those of Windows."""
    return "microsoft" not in platform.release().lower()


def _written(address: tuple[str, int]) -> str:
    """Return an address as the table has it: 32-bit words in host byte order."""
    host, port = address
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
