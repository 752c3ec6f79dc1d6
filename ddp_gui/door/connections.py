"""The server's side of a connection, for one that is not patient without end.

uvicorn waits for ever for a request to be finished, and takes as many connections as come.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 600
HEADERS_WITHIN_S = 20.0
BODY_GOES_ON_WITHIN_S = 30.0


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 whose requests must arrive: all headers soon, a body without long pauses."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > MAX_CONNECTIONS:
            self.transport.abort()
            return
        self._wait(HEADERS_WITHIN_S)

    def data_received(self, data: bytes) -> None:
        """Take what came, and decide how long to wait for the rest."""
        was_in_headers = self.conn.their_state is h11.IDLE
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY:
            self._wait(BODY_GOES_ON_WITHIN_S)
        elif self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif not was_in_headers or self._deadline is None:
            self._wait(HEADERS_WITHIN_S)

    def on_response_complete(self) -> None:
        """The next request may be long in coming: uvicorn closes what is idle by itself."""
        super().on_response_complete()
        if self.conn.their_state is not h11.SEND_BODY:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        # A reader that pauses because we do is not the one at fault.
        if self.flow.read_paused:
            self._wait(BODY_GOES_ON_WITHIN_S)
        else:
            self.transport.abort()
