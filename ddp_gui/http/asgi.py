"""The parts of ASGI that our own middleware uses."""

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
    """A request that is refused: its status, and the reason in plain words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


async def answer(send: Send, refused: Refused) -> None:
    """Answer with a status and a plain sentence, as JSON too."""
    body = orjson.dumps({"detail": str(refused)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if refused.status in (411, 413, 507):
        # The rest of the request is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
