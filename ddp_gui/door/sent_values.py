"""What is sent to Gradio's functions: JSON of bounded depth, in which no file is named but an uploaded one.

Gradio takes every object with a path in it for a file, whichever component it is meant for: it would copy
that file of this machine, or fetch it from another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from ddp_gui.door.asgi import Message, Receive, Refused

MAX_DEPTH = 40


async def checked_body(receive: Receive, incoming: Path) -> Receive:
    """Read a request's body, check it, and return what gives it once more.

    Raises:
        Refused: when it is no JSON, nested without end, or names a file that was not uploaded.
    """
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
    body = b"".join(pieces)
    _check(body, incoming)
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def _check(body: bytes, incoming: Path) -> None:
    try:
        value = orjson.loads(body) if body else None
    except ValueError as error:
        raise Refused(400, "What was sent is not JSON that can be used.") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer, incoming)]
        if not level:
            return
    raise Refused(400, f"What was sent is nested more than {MAX_DEPTH} deep.")


def _inside(value: Any, incoming: Path) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    if "path" in value and not _was_uploaded(value["path"], incoming):
        raise Refused(400, "This file was not uploaded: choose it again.")
    return list(value.values())


def _was_uploaded(path: Any, incoming: Path) -> bool:
    try:
        return isinstance(path, str) and Path(path).resolve(strict=True).is_relative_to(incoming)
    except (OSError, ValueError):
        return False
