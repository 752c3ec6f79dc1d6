"""A file that is made while it is sent: so many at once, and only for who reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi.responses import JSONResponse, StreamingResponse

from ddp_gui.background.workers import TooManyError, Workers
from ddp_gui.http.asgi import Message, Receive, Scope, Send

# A piece is up to a megabyte. Who drips holds a process and a place that others wait for.
TAKEN_WITHIN_S = 60.0


class MadeFile(StreamingResponse):
    """An answer to be kept as a file, made by workers piece by piece."""

    def __init__(self, workers: Workers, pieces: Iterator[bytes], name: str, media_type: str) -> None:
        """Make it.

        Args:
            name: plain letters, so that it can stand in a header as it is.
        """
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        super().__init__(workers.pieces(pieces), media_type=media_type, headers=headers)
        self._workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, unless too many are being sent; it is broken off when its reader takes too long."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await send(message)

        try:
            with self._workers.one_more_open():
                await super().__call__(scope, receive, send_in_time)
        except TooManyError as error:
            await JSONResponse({"detail": str(error)}, status_code=429)(scope, receive, send)
        except TimeoutError:
            return  # ending without the last piece closes the connection
