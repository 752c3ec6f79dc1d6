"""Which names this server answers to (against DNS rebinding), and which addresses count as one sender."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

_HOST = re.compile(
    r"(?:\[(?P<number>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
LAST_PORT = 65_535


class Hosts:
    """The names of this machine, and every IP address: a request to an address was not redirected by DNS."""

    def __init__(self, names: Iterable[str]) -> None:
        short = socket.gethostname().lower()
        ours = {"localhost", "::1", short, f"{short}.local", socket.getfqdn().lower()}
        self._names = ours | {name.lower() for name in names}

    def are_ours(self, host: str) -> bool:
        """Tell whether a Host header names this server: a name or an IP address, perhaps with a port."""
        match = _HOST.fullmatch(host)
        # Later code parses the address again: an invalid port or number would raise there.
        if match is None or int(match["port"] or 0) > LAST_PORT:
            return False
        if match["number"]:
            return _is_number(match["number"], ipaddress.IPv6Address)
        name = match["name"].lower()
        return name in self._names or _is_number(name, ipaddress.IPv4Address)


def _is_number(text: str, kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:80]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return str(found)
