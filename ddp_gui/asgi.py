"""The few words of ASGI that our own middleware speaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refused(Exception):  # noqa: N818 - an answer, not a fault of ours
    """A request that is not served: with which status, and why in plain words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


async def answer(send: Send, status: int, words: str) -> None:
    """Answer with a status and a plain sentence."""
    body = words.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status in (411, 413, 507):
        # What is still to come is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
