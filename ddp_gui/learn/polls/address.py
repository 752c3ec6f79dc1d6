"""The address of a poll for phones, and what to do where they cannot reach it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

from ddp_gui.options import Options, is_only_here

# Of a network for documentation: nothing is sent there, the system is only asked which way it would take.
_ANYWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a page is for others.

    Attributes:
        url: None where others cannot reach it; `problem` then says what to do.
    """

    url: str | None
    problem: str


def of_page(options: Options, scheme: str, host: str, port: int) -> Address:
    """Return the address of the page's root, with a slash at its end.

    Args:
        scheme: by which the request came.
        host: the name in the request, perhaps with a port.
        port: on which the page listens.
    """
    name = host.rsplit(":", 1)[0].strip("[]") if not host.endswith("]") else host.strip("[]")
    prefix = f"{options.root_path}/"
    if options.allowed_hosts:
        # As people reach it, through a proxy or by a name of its own.
        allowed = {each.lower() for each in options.allowed_hosts}
        shown = host if name.lower() in allowed else options.allowed_hosts[0]
        return Address(url=f"{scheme}://{shown}{prefix}", problem="")
    if not is_only_here(name):
        return Address(url=f"{scheme}://{host}{prefix}", problem="")
    if is_only_here(options.host):
        return Address(url=None, problem=_how_to_be_reached(options))
    outside = options.host if options.host not in ("0.0.0.0", "::", "") else own_address()  # noqa: S104
    if outside is None:
        problem = "This machine has no address in a network now, so phones cannot reach this page."
        return Address(url=None, problem=problem)
    shown = f"[{outside}]" if ":" in outside else outside
    return Address(url=f"{scheme}://{shown}:{port}{prefix}", problem="")


def own_address() -> str | None:
    """Return the address by which other machines reach this one; None without a network."""
    for family, there in zip((socket.AF_INET, socket.AF_INET6), _ANYWHERE, strict=True):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect(there)
            found = str(asking.getsockname()[0])
            if not is_only_here(found):
                return found
    return None


def _how_to_be_reached(options: Options) -> str:
    how = "--auth-file accounts.json" if options.has_login else "--polls"
    return (
        "This page listens on this machine only, so phones cannot reach it. Start it so that they can: "
        f"python app.py --host 0.0.0.0 {how} (docs/class.md)."
    )
