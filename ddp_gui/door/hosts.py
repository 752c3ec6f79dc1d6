"""Which names this server answers to, against names that were made to point here (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

_HOST = re.compile(r"(?:\[(?P<number>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::\d{1,5})?")


class Hosts:
    """The names of this machine, and every number: whoever asks by it has found this machine itself."""

    def __init__(self, names: Iterable[str]) -> None:
        short = socket.gethostname().lower()
        ours = {"localhost", "::1", short, f"{short}.local", socket.getfqdn().lower()}
        self._names = ours | {name.lower() for name in names}

    def are_ours(self, host: str) -> bool:
        """Tell whether a Host header names this server; nothing but a name or number and a port is one."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["number"] or match["name"]).lower()
        return name in self._names or _is_number(name)


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
