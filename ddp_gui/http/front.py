"""The outermost middleware: serves below a prefix, removes untrusted proxy headers and unknown cookies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ddp_gui.http.asgi import App, Receive, Scope, Send

# Gradio builds addresses from these, whoever sends them. A trusted proxy's values are in the scope by now.
PROXY_HEADERS = (b"x-forwarded-", b"forwarded", b"x-gradio-server")
# The key in a request's scope of whether it says that a proxy passed it on.
FORWARDED_KEY = "ddp_is_forwarded"
# What a cookie of this page looks like: its name, and a token.
_COOKIE = re.compile(rb"([A-Za-z0-9_]{1,64})=([A-Za-z0-9._-]{1,256})")


def cookies(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the cookies of a request whose values are tokens.

    `http.cookies`, which Starlette uses too, needs quadratic time for a quoted value in Python before
    3.11.10 (CVE-2024-7592). Of two cookies of one name the first counts: browsers send the most specific
    path first.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        if name == b"cookie":
            for match in map(_COOKIE.fullmatch, map(bytes.strip, value.split(b";"))):
                if match is not None:
                    found.setdefault(match[1].decode("ascii"), match[2].decode("ascii"))
    return found


class Front:
    """ASGI middleware: serves below a prefix, whether the proxy in front strips it or keeps it."""

    def __init__(self, app: App, root_path: str, known_cookies: Collection[str] = ()) -> None:
        self._app = app
        self._root_path = root_path
        self._known_cookies = known_cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Nothing below parses a cookie that this page did not set.
        kept = [pair for pair in cookies(scope["headers"]).items() if pair[0] in self._known_cookies]
        scope[FORWARDED_KEY] = any(name.startswith(PROXY_HEADERS[:2]) for name, _ in scope["headers"])
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name != b"cookie" and not name.lower().startswith(PROXY_HEADERS)
        ]
        if kept:
            scope["headers"].append((b"cookie", "; ".join(map("=".join, kept)).encode("ascii")))
        if self._root_path:
            if scope["path"] == self._root_path:
                await _add_slash(self._root_path, scope, send)
                return
            scope["root_path"] = self._root_path
            if not scope["path"].startswith(f"{self._root_path}/"):
                scope["path"] = self._root_path + scope["path"]
                scope["raw_path"] = self._root_path.encode() + scope.get("raw_path", b"")
        await self._app(scope, receive, send)


async def _add_slash(root_path: str, scope: Scope, send: Send) -> None:
    """Links on the first page are relative: without the slash they would lead outside the prefix."""
    query = scope.get("query_string", b"")
    location = root_path.encode() + b"/" + (b"?" + query if query else b"")
    headers = [(b"location", location), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
