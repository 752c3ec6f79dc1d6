"""Parses the JSON body of a request, which is bounded before it is parsed.

A parser holds the interpreter until it is done, in whichever thread it runs: 333,000 empty lists fit into
1 MB, and creating them takes 0.3 s, during which no request is answered. Strings and numbers are cheap.
"""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import HTTPException, Request

MAX_BYTES = 128 * 1024
# The largest request of the page deletes some thousand runs with one click.
MAX_VALUES = 20_000
# Lists, objects and their named fields.
MAX_PARTS = 2_000


async def read(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: when it is longer than allowed.
    """
    pieces, num_bytes = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            detail = f"This request is too large: at most {max_bytes:,} bytes are accepted."
            raise HTTPException(status_code=413, detail=detail)
    return b"".join(pieces)


def parse(body: bytes, *, max_parts: int = MAX_PARTS) -> Any:
    """Return the value of a JSON text; None for an empty one.

    Raises:
        ValueError: when it is not JSON, or has too many values.
    """
    if not body:
        return None
    if _has_too_many(body, max_parts):
        # Brackets and commas inside strings do not count.
        outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
        if _has_too_many(outside, max_parts):
            raise ValueError(
                f"The request holds more than {MAX_VALUES:,} values, or {max_parts:,} lists and named fields."
            )
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError("The request body is not valid JSON.") from error


def _has_too_many(text: bytes, max_parts: int) -> bool:
    num_parts = text.count(b"[") + text.count(b"{") + text.count(b":")
    return num_parts > max_parts or text.count(b",") > MAX_VALUES
