"""The few words of ASGI that our own middleware speaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

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


async def answer(send: Send, refused: Refused) -> None:
    """Answer with a status and a plain sentence, to whoever reads JSON as well."""
    body = orjson.dumps({"detail": str(refused)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if refused.status in (411, 413, 507):
        # What is still to come is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
