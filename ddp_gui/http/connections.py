"""The server's side of a connection, with read timeouts: uvicorn has none for a request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ddp_gui.http import front
from ddp_gui.http.front import MAX_HEADER_BYTES, MAX_HEADERS, NO_HOST, NO_LENGTH, TOO_LARGE, App, Refused
from ddp_gui.http.listening import Listener

HEADERS_WITHIN_S = 20.0
BODY_PAUSE_LIMIT_S = 30.0
# The minimum average rate of a body, even if it arrives steadily.
MIN_BODY_BYTES_PER_S = 10_000
# Time for which the rest of a refused request is read and dropped. Closing a socket with unread data resets
# the connection, and the client may lose the response (RFC 9112, section 9.6).
LINGER_S = 2.0
OTHER_USER_TEXT = (
    "This page belongs to another user of this machine and has no login. Start your own page, "
    "on another port."
)
BYPASSES_PROXY_TEXT = (
    "This page is available only through a proxy, which identifies you. Use the proxy's address."
)
_LENGTHS = re.compile(rb"^content-length[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_HOST = re.compile(rb"^host[ \t]*:", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding[ \t]*:", re.IGNORECASE | re.MULTILINE)
_REASONS = {
    400: b"Bad Request",
    403: b"Forbidden",
    411: b"Length Required",
    431: b"Request Header Fields Too Large",
}


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with read timeouts: for the headers, for pauses in a body, and for its average rate."""

    conn: _HeadCheckingConnection
    _deadline: asyncio.TimerHandle | None = None
    _identifying: asyncio.Task[None] | None = None
    _body_started_s = 0.0
    _num_body_bytes = 0
    _is_refused = False

    def __init__(
        self, *args: Any, listener: Listener | None = None, phones: App | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        # Use an empty context for each request: after a pause, asyncio reads a connection in the context of
        # an earlier request (cpython issue 140947), and behind a proxy the next request may belong to another
        # user.
        self.config.reset_contextvars = True
        self._listener = listener
        # The app for unknown clients; None: refuse them.
        self._phones = phones
        self.conn = _HeadCheckingConnection(h11.SERVER, MAX_HEADER_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a connection."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._set_deadline(HEADERS_WITHIN_S)
        identify = None if self._listener is None else self._listener.identification(self._file_descriptor())
        if identify is None:
            self._choose_app()
        else:
            self.transport.pause_reading()
            self._identifying = self.loop.create_task(self._identify(identify))

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and set the timeout for the rest."""
        if self._is_refused:
            return
        if self._phones is None and self._is_foreign():
            self._refuse(403, OTHER_USER_TEXT)
            return
        if self._listener is not None and self._listener.bypasses_proxy(self._file_descriptor()):
            self._refuse(403, BYPASSES_PROXY_TEXT)
            return
        old_state = self.conn.their_state
        super().data_received(data)
        self._set_timeout(old_state, len(data))

    def _set_timeout(self, old_state: Any, num_bytes: int) -> None:
        if self._is_refused:
            return
        if self.conn.their_state is h11.SEND_BODY:
            if old_state is not h11.SEND_BODY:
                self._body_started_s, self._num_body_bytes = self.loop.time(), 0
            self._num_body_bytes += num_bytes
            self._report_waiting(waits=True)
            self._set_deadline(min(BODY_PAUSE_LIMIT_S, self._body_allowed_s()))
        elif self.conn.their_state is not h11.IDLE:
            self._report_waiting(waits=False)
            self._cancel_deadline()
        elif old_state is not h11.IDLE or self._deadline is None:
            self._set_deadline(HEADERS_WITHIN_S)

    def on_response_complete(self) -> None:
        """Stop the timeout between requests: uvicorn itself closes idle connections."""
        self._report_waiting(waits=True)
        super().on_response_complete()
        if self.conn.their_state is not h11.SEND_BODY:
            self._cancel_deadline()

    def eof_received(self) -> None:
        """Close a refused connection after the client has sent its entire request."""
        if self._is_refused:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, with the headers of all responses."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # the client has already received the response, or a part of it
            return
        refused = self.conn.refused
        self._refuse(*((400, msg) if refused is None else (refused.status, str(refused))))

    def _refuse(self, status: int, text: str) -> None:
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=front.merge_policies(headers), reason=_REASONS[status]),
            h11.Data(data=text.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._is_refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._set_deadline(LINGER_S)
        else:
            self.transport.close()  # TLS

    async def _identify(self, identify: Callable[[], None]) -> None:
        """Identify the user who opened the connection before reading from it."""
        assert self._listener is not None
        await self.loop.run_in_executor(self._listener.threads, identify)
        if not self.transport.is_closing():
            self._choose_app()
            self.transport.resume_reading()

    def _choose_app(self) -> None:
        if self._phones is not None and self._is_foreign():
            self.app = self._phones

    def _is_foreign(self) -> bool:
        return self._listener is not None and self._listener.is_foreign(self._file_descriptor())

    def _report_waiting(self, *, waits: bool) -> None:
        if self._listener is not None:
            self._listener.set_waiting(self._file_descriptor(), waits=waits)

    def _file_descriptor(self) -> int:
        descriptor: int = self.transport.get_extra_info("socket").fileno()
        return descriptor

    def _body_allowed_s(self) -> float:
        """Return the remaining time for a body with this number of received bytes."""
        elapsed_s = self.loop.time() - self._body_started_s
        return max(0.0, BODY_PAUSE_LIMIT_S + self._num_body_bytes / MIN_BODY_BYTES_PER_S - elapsed_s)

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        # Do not time out while reading is paused.
        if self.flow.read_paused and not self._is_refused:
            self._body_started_s += BODY_PAUSE_LIMIT_S
            self._set_deadline(BODY_PAUSE_LIMIT_S)
        else:
            self.transport.abort()


class _HeadCheckingConnection(h11.Connection):
    """Checks a request's head before h11 parses it: its size, and how it declares the length of the body.

    h11 limits a head only if it arrives in several pieces, accepts two equal Content-Length headers, and
    parses the chunks of a body, each with extensions, and the trailers, although no chunked body is accepted.
    """

    refused: Refused | None = None

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: if it is not a valid request.
        """
        if self.their_state is h11.IDLE:
            try:
                _check_head(self.trailing_data[0])
            except Refused as refused:
                self.refused = refused
                raise h11.RemoteProtocolError(str(refused), error_status_hint=refused.status) from refused
        return super().next_event()


def _check_head(received: bytes) -> None:
    """Check the head of a request, which may be incomplete.

    Raises:
        Refused: if it is too large, or does not declare the length of the body in one header.
    """
    ends = [end for end in (received.find(b"\n\r\n"), received.find(b"\n\n")) if end >= 0]
    head = received[: min(ends)] if ends else received
    if len(head) > MAX_HEADER_BYTES or head.count(b"\n") > MAX_HEADERS:
        raise Refused(431, TOO_LARGE)
    if not ends:
        return
    if not _HOST.search(head) and head.partition(b"\n")[0].rstrip().endswith(b"HTTP/1.1"):
        raise Refused(400, NO_HOST)
    lengths = _LENGTHS.findall(head)
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        raise Refused(400, "The request has more than one Content-Length header.")
    if _CHUNKED.search(head):
        raise Refused(411, NO_LENGTH)
