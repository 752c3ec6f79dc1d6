"""Through which network interface this machine reaches another."""

from __future__ import annotations

import ipaddress
import socket

from trainers.machine import host

# A documentation address (RFC 5737): the way to it is the way out of this machine. Nothing is sent.
_OUTSIDE = "192.0.2.1"
_ANY_PORT = 9


def interface_towards(address: str) -> str | None:
    """Return the interface that packets to a host leave by; None where it is not known.

    To this machine's own address it is the interface that has it. Debian's line `127.0.1.1 HOST` lets the
    machine's own name mean loopback, but only here: then it is the way out.
    """
    own = own_address(address)
    if own is not None and is_loopback(own) and not _means_loopback(address):
        own = own_address(_OUTSIDE)
    return next((name for name, addresses in host.interfaces().items() if own in addresses), None)


def own_address(towards: str) -> str | None:
    """Return which of its addresses this machine uses towards a host, None without a way; nothing is sent."""
    try:
        found = socket.getaddrinfo(towards, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as asked:
            try:
                asked.connect(place)
            except OSError:
                continue
            return str(asked.getsockname()[0]).partition("%")[0]
    return None


def _means_loopback(address: str) -> bool:
    return address == "localhost" or is_loopback(address)


def is_loopback(address: str) -> bool:
    """True if an address, not a name, is one of loopback."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
