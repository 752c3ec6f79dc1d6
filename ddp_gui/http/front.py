"""Checks at the front of the server: limits, host names and headers of every request."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from fastapi import Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refused(Exception):  # noqa: N818 - an answer, not a fault of ours
    """A request is refused: HTTP status, and the reason as a sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


# Paths below which no URL is a page.
NO_PAGES = ("/live/", "/gradio_api/", "/config", "/heartbeat", "/assets/", "/static/", "/theme.css")


def asks_for_page(scope: Scope, path: str) -> bool:
    """Return True if a browser opens a URL as a page; `path` does not contain the prefix of a proxy."""
    accepted = b"".join(value for name, value in scope["headers"] if name == b"accept")
    return scope["method"] in ("GET", "HEAD") and b"text/html" in accepted and not path.startswith(NO_PAGES)


async def send_refusal(send: Send, refused: Refused) -> None:
    """Answer with a status and a sentence, as JSON."""
    body = orjson.dumps({"detail": str(refused)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if refused.status in (411, 413, 507):
        # Close the connection, because the rest of the request is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_HOST = re.compile(
    r"(?:\[(?P<number>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
LAST_PORT = 65_535


class AllowedHosts:
    """Accepted hosts: this machine's names, and every IP address, because DNS rebinding needs a name."""

    def __init__(self, names: Iterable[str]) -> None:
        hostname = socket.gethostname().lower()
        own_names = {"localhost", "::1", hostname, f"{hostname}.local", socket.getfqdn().lower()}
        self._names = own_names | {name.lower() for name in names}

    def accepts(self, host: str) -> bool:
        """Return True if a Host header names this server: a name or an IP address, optionally with a port."""
        match = _HOST.fullmatch(host)
        if match is None or not is_host(host):
            return False
        if match["number"]:
            return True
        name = match["name"].lower()
        return name in self._names or _is_ip_address(name, ipaddress.IPv4Address)


def is_host(text: str) -> bool:
    """Return True if a Host header is valid: later code parses it again, and would raise otherwise."""
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or 0) > LAST_PORT:
        return False
    return not match["number"] or _is_ip_address(match["number"], ipaddress.IPv6Address)


def _is_ip_address(text: str, address_class: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    try:
        address_class(text)
    except ValueError:
        return False
    return True


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:80]
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
    return str(ip)


Header = tuple[bytes, bytes]

_NO_FRAMES = "frame-ancestors 'none'"
DATA = f"default-src 'none'; {_NO_FRAMES}"
_PAGE = (
    "default-src 'none'; connect-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    f"manifest-src 'self'; base-uri 'self'; form-action 'self'; {_NO_FRAMES}; "
)
# This older header cannot list origins, unlike the policy.
FRAME_HEADER = b"x-frame-options"
HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (FRAME_HEADER, b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=(), payment=(), usb=()"),
)
POLICY_HEADER = b"content-security-policy"
_CACHE_HEADERS = {b"cache-control", b"etag"}


def own_page_policy(inline_scripts: Iterable[str] = ()) -> str:
    """Return the policy of this server's pages: only its own files and these inline scripts run."""
    # Plotly creates empty style elements and fills them through the CSSOM, which is not inline style; but the
    # superscripts of a logarithmic axis have style attributes.
    scripts, styles = _sources(inline_scripts), _sources([""])
    return f"{_PAGE}script-src 'self'{scripts}; style-src 'self'{styles}; style-src-attr 'unsafe-inline'"


def file_page_policy(scripts: Iterable[str], style: str) -> str:
    """Return the policy of a page in a file, which may load nothing and execute only these scripts."""
    styles = _sources([style, ""])
    return (
        f"default-src 'none'; script-src{_sources(scripts)}; style-src{styles}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def gradio_page_policy(inline_scripts: Iterable[str]) -> str:
    """Return the policy of Gradio's page, which evaluates its own templates and uses inline styles."""
    scripts = _sources(inline_scripts)
    return f"{_PAGE}script-src 'self' 'unsafe-eval'{scripts}; style-src 'self' 'unsafe-inline'"


def merge_policies(headers: Iterable[Header], frames: Sequence[str] = ()) -> list[Header]:
    """Return a response's headers with the default headers added; a policy of the response takes precedence.

    Args:
        frames: the origins of the pages that may contain this page as a frame.
    """
    response_headers = list(headers)
    names = {name.lower() for name, _ in response_headers}
    added = [*HEADERS] if POLICY_HEADER in names else [*HEADERS, (POLICY_HEADER, DATA.encode())]
    if not names & _CACHE_HEADERS and not _is_page(response_headers):
        # Neither a file nor a page: a user's data, which the next user of this computer must not find.
        added.append((b"cache-control", b"no-store"))
    replaced_names = {name for name, _ in HEADERS}
    merged = [(name, value) for name, value in response_headers if name.lower() not in replaced_names] + added
    return (
        [_allow_frames(header, frames) for header in merged if header[0] != FRAME_HEADER]
        if frames
        else merged
    )


def _allow_frames(header: Header, frames: Sequence[str]) -> Header:
    name, value = header
    if name.lower() != POLICY_HEADER:
        return header
    return name, value.replace(_NO_FRAMES.encode(), f"frame-ancestors {' '.join(frames)}".encode())


def _is_page(headers: Iterable[Header]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)


def _sources(texts: Iterable[str]) -> str:
    return "".join(f" 'sha256-{_digest(text)}'" for text in texts)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


MAX_HEADER_BYTES = 32 * 1024
# Maximum number of path parts: resolving a file takes quadratic time, 0.6 s for 14,000 parts.
MAX_PATH_PARTS = 64
# FastAPI and python-multipart need quadratic time for the parameters of a header: 1.8 s for 28 KB.
MAX_PARAMETER_BYTES = 512
_WITH_PARAMETERS = (b"content-type", b"content-disposition", b"range", b"if-range")
# Maximum number of headers: browsers send twenty, proxies add ten.
MAX_HEADERS = 200
# For a path of a file, the server accesses the disk for each part.
MAX_PATH_LENGTH = 2_000
MAX_BODY_BYTES = 1_000_000
# Number of bytes to read and drop after a refusal, because a client that is still sending when the connection
# closes does not receive the answer.
MAX_DROPPED_BYTES = 8_000_000
# Maximum number of concurrent requests per address: a classroom behind one address may have thirty pages
# open, each with a stream and occasional requests.
MAX_REQUESTS_PER_ADDRESS = 200
# Maximum number of concurrent requests per logged-in user: enough for a few browsers with many pages,
# far below the limit of a classroom.
MAX_REQUESTS_PER_USER = 50
TOO_LARGE = (
    f"The headers of this request are too large: at most {MAX_HEADER_BYTES:,} bytes and {MAX_HEADERS} "
    "headers are accepted."
)
NO_HOST = (
    "This request does not say which host name the browser uses. A proxy must pass on the Host header: "
    "proxy_set_header Host $http_host (nginx), ProxyPreserveHost On (Apache)."
)
NO_LENGTH = "A request with a body must declare the length of the body (Content-Length)."
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
_FRAMING = (b"content-length", b"transfer-encoding")


def check_headers(scope: Scope) -> None:
    """Refuse a path and headers that are too long or take long to parse.

    Raises:
        Refused: if they exceed a limit.
    """
    size = len(scope["path"]) + len(scope.get("query_string", b""))
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise Refused(431, TOO_LARGE)
    if scope["path"].count("/") > MAX_PATH_PARTS:
        raise Refused(414, f"The path of this address has too many parts; allowed: at most {MAX_PATH_PARTS}.")
    for name, value in scope["headers"]:
        if name in _WITH_PARAMETERS and len(value) > MAX_PARAMETER_BYTES:
            raise Refused(
                431, f"The header {name.decode()} is too long; allowed: at most {MAX_PARAMETER_BYTES} bytes."
            )


def check_body(scope: Scope, max_bytes: int) -> None:
    """Refuse a body before any of it is read.

    Raises:
        Refused: if it is too long, or its length is not declared.
    """
    headers = [(name, value) for name, value in scope["headers"] if name in _FRAMING]
    if not headers and scope["method"] in _WITHOUT_BODY:
        return
    lengths = [value for name, value in headers if name == b"content-length"]
    # uvicorn enforces the declared length of a body; a chunked body declares none.
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


class RequestCounter:
    """Counts the requests in progress of each sender, streams included."""

    def __init__(
        self, max_requests: int = MAX_REQUESTS_PER_ADDRESS, source_text: str = "from your address"
    ) -> None:
        self._max_requests = max_requests
        self._source_text = source_text
        self._counts: Counter[str] = Counter()

    @contextmanager
    def admit(self, sender: str) -> Iterator[None]:
        """Count a request until it ends.

        Raises:
            Refused: if this sender already has too many requests.
        """
        if self._counts[sender] >= self._max_requests:
            raise Refused(
                429, f"Too many requests at once {self._source_text}. Close some tabs and try again."
            )
        self._counts[sender] += 1
        try:
            yield
        finally:
            self._counts[sender] -= 1
            if not self._counts[sender]:
                del self._counts[sender]


MAX_BYTES = 128 * 1024
# Maximum number of values: the page's largest request deletes several thousand runs.
MAX_VALUES = 20_000
# Maximum number of lists, objects and named fields.
MAX_PARTS = 2_000


async def read_json_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: if it is too long.
    """
    # Imported here, because app.py imports this module before anything that takes time.
    from fastapi import HTTPException

    chunks, num_bytes = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            detail = f"This request is too large: at most {max_bytes:,} bytes are accepted."
            raise HTTPException(status_code=413, detail=detail)
    return b"".join(chunks)


def parse_json_body(body: bytes, *, max_parts: int = MAX_PARTS) -> Any:
    """Return the value of a JSON text; None for an empty text.

    Raises:
        ValueError: if the text is not JSON, or has too many values.
    """
    if not body:
        return None
    if _has_too_many(body, max_parts):
        # Brackets and commas inside strings do not count.
        outside_strings = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
        if _has_too_many(outside_strings, max_parts):
            raise ValueError(
                f"The request contains more than {MAX_VALUES:,} values, or {max_parts:,} lists and fields."
            )
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError("The request body is not valid JSON.") from error


def _has_too_many(text: bytes, max_parts: int) -> bool:
    num_parts = text.count(b"[") + text.count(b"{") + text.count(b":")
    return num_parts > max_parts or text.count(b",") > MAX_VALUES


# Headers to remove, because Gradio builds URLs from them for any sender. A trusted proxy's values are already
# in the scope.
PROXY_HEADERS = (b"x-forwarded-", b"forwarded", b"x-gradio-server")
# Key in a request's scope: True if the headers claim that a proxy forwarded the request.
FORWARDED_KEY = "ddp_is_forwarded"
# Format of this page's cookies: a name and a token.
_COOKIE = re.compile(rb"([A-Za-z0-9_]{1,64})=([A-Za-z0-9._-]{1,256})")


def cookies(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the cookies of a request whose values are tokens.

    `http.cookies`, which Starlette uses, needs quadratic time for a quoted value in Python before 3.11.10
    (CVE-2024-7592). Of two cookies with the same name the first one counts, because browsers send the most
    specific path first.
    """
    values: dict[str, str] = {}
    for name, value in headers:
        if name == b"cookie":
            for match in map(_COOKIE.fullmatch, map(bytes.strip, value.split(b";"))):
                if match is not None:
                    values.setdefault(match[1].decode("ascii"), match[2].decode("ascii"))
    return values


class Front:
    """ASGI middleware: serves below a prefix, whether a proxy strips or keeps the prefix."""

    def __init__(self, app: App, root_path: str, known_cookies: Collection[str] = ()) -> None:
        self._app = app
        self._root_path = root_path
        self._known_cookies = known_cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request to the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Remove all other cookies, so that no later code parses a cookie that this page did not set.
        known_cookies = [pair for pair in cookies(scope["headers"]).items() if pair[0] in self._known_cookies]
        scope[FORWARDED_KEY] = any(name.startswith(PROXY_HEADERS[:2]) for name, _ in scope["headers"])
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name != b"cookie" and not name.lower().startswith(PROXY_HEADERS)
        ]
        if known_cookies:
            scope["headers"].append((b"cookie", "; ".join(map("=".join, known_cookies)).encode("ascii")))
        if self._root_path:
            if scope["path"] == self._root_path:
                await _redirect_to_slash(self._root_path, scope, send)
                return
            scope["root_path"] = self._root_path
            if not scope["path"].startswith(f"{self._root_path}/"):
                scope["path"] = self._root_path + scope["path"]
                scope["raw_path"] = self._root_path.encode() + scope.get("raw_path", b"")
        await self._app(scope, receive, send)


async def _redirect_to_slash(root_path: str, scope: Scope, send: Send) -> None:
    """Redirect to the prefix with a slash, because relative links would otherwise leave the prefix."""
    query = scope.get("query_string", b"")
    location = root_path.encode() + b"/" + (b"?" + query if query else b"")
    headers = [(b"location", location), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
