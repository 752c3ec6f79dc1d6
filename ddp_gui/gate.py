"""The one gate in front of everything: Gradio's routes and ours alike.

A page of another site must not be able to drive this server through the visitor's browser, neither by
a foreign Origin nor by a name that was made to point here (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Gradio builds its page with inline scripts and evaluates templates; all else stays on this host.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; frame-ancestors 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"same-origin"),
)


class Gate:
    """ASGI middleware: refuses foreign hosts and origins, adds the protecting headers."""

    def __init__(self, app: App, host: str) -> None:
        self._app = app
        short = socket.gethostname().lower()
        ours = {short, f"{short}.local", socket.getfqdn().lower()}
        self._names = {"localhost", "127.0.0.1", "::1", host.lower(), *ours}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "websocket":
            # Nothing here speaks it; and a browser sends it across sites.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            await _refuse(
                send, "This server does not answer to this name. Use the machine's IP address instead."
            )
            return
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            await _refuse(send, "Requests from another site are not answered.")
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _merged(message.get("headers", []))
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _is_ours(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if name in self._names:
            return True
        try:
            # A number cannot be rebound: whoever asks by it has found this machine itself.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _merged(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    ours = {name for name, _ in HEADERS}
    return [(name, value) for name, value in headers if name.lower() not in ours] + list(HEADERS)


async def _refuse(send: Send, reason: str) -> None:
    body = reason.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
