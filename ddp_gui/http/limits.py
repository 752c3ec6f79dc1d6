"""Limits on the concurrent requests of a sender, and on the size of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ddp_gui.http.asgi import Receive, Refused, Scope

MAX_HEADER_BYTES = 32 * 1024
# Resolving the path of a file takes quadratic time in them: 0.6 s for 14,000.
MAX_PATH_PARTS = 64
# FastAPI and python-multipart need quadratic time for the parameters of a header: 1.8 s for 28 KB of them.
MAX_PARAMETER_BYTES = 512
_WITH_PARAMETERS = (b"content-type", b"content-disposition", b"range", b"if-range")
# Browsers send twenty, proxies add ten.
MAX_HEADERS = 200
# Of an address: the server looks up each part of it on the disk where it names a file.
MAX_PATH_LENGTH = 2_000
MAX_BODY_BYTES = 1_000_000
# A client that still sends when the connection closes never sees the answer: up to this is read and dropped.
MAX_DROPPED_BYTES = 8_000_000
# A classroom behind one address has thirty pages open, each with a stream and occasional requests.
MAX_AT_ONCE = 200
# Per person with a login: a few browsers full of pages, but not the limit of a whole classroom.
MAX_AT_ONCE_OF_ONE = 50
TOO_LARGE = (
    f"The headers of this request are too large: at most {MAX_HEADER_BYTES:,} bytes and {MAX_HEADERS} "
    "headers are accepted."
)
NO_HOST = (
    "This request does not say which address the browser uses. A proxy must pass on the Host header: "
    "proxy_set_header Host $http_host (nginx), ProxyPreserveHost On (Apache)."
)
NO_LENGTH = "A request with a body must state its length (Content-Length)."
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
_FRAMING = (b"content-length", b"transfer-encoding")


def check_headers(scope: Scope) -> None:
    """Refuse a path and headers of too many bytes, and those that take long to parse.

    Raises:
        Refused: when they are longer than allowed.
    """
    size = len(scope["path"]) + len(scope.get("query_string", b""))
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise Refused(431, TOO_LARGE)
    if scope["path"].count("/") > MAX_PATH_PARTS:
        raise Refused(414, f"The path of this address has at most {MAX_PATH_PARTS} parts.")
    for name, value in scope["headers"]:
        if name in _WITH_PARAMETERS and len(value) > MAX_PARAMETER_BYTES:
            raise Refused(431, f"The header {name.decode()} has at most {MAX_PARAMETER_BYTES} bytes.")


def check_body(scope: Scope, max_bytes: int) -> None:
    """Refuse a body before any of it is read.

    Raises:
        Refused: when it is longer than allowed, or does not say how long it is.
    """
    headers = [(name, value) for name, value in scope["headers"] if name in _FRAMING]
    if not headers and scope["method"] in _WITHOUT_BODY:
        return
    lengths = [value for name, value in headers if name == b"content-length"]
    # The server below enforces the declared length of a body; a chunked one declares none.
    if len(lengths) != 1 or len(headers) != 1 or not lengths[0].isdigit():
        raise Refused(411, NO_LENGTH)
    if int(lengths[0][:20]) > max_bytes:
        raise Refused(413, f"This request is too large: at most {max_bytes:,} bytes are accepted.")


async def drop_body(scope: Scope, receive: Receive) -> None:
    """Read the body of a refused request to its end, unless it is long."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if len(lengths) != 1 or not lengths[0].isdigit() or int(lengths[0][:20]) > MAX_DROPPED_BYTES:
        return
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass


class AtOnce:
    """Counts the requests in progress of each sender, streams included."""

    def __init__(self, most: int = MAX_AT_ONCE, whose: str = "from your address") -> None:
        self._most = most
        self._whose = whose
        self._counts: Counter[str] = Counter()

    @contextmanager
    def one_more(self, sender: str) -> Iterator[None]:
        """Count a request while it lasts.

        Raises:
            Refused: when this sender has too many already.
        """
        if self._counts[sender] >= self._most:
            raise Refused(429, f"Too many requests at once {self._whose}. Close some tabs and try again.")
        self._counts[sender] += 1
        try:
            yield
        finally:
            self._counts[sender] -= 1
            if not self._counts[sender]:
                del self._counts[sender]
