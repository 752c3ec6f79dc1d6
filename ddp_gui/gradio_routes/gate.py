"""The request checks in front of all routes, Gradio's and ours.

Another site's page must not be able to use this server through a visitor's browser, neither by a foreign
Origin nor by a name that points here (DNS rebinding). No sender may use up what others need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddp_gui.background import loop_delay
from ddp_gui.gradio_routes import uploads
from ddp_gui.gradio_routes.allowlist import UPLOAD, route_path
from ddp_gui.http import policies
from ddp_gui.http.asgi import App, Message, Receive, Refused, Scope, Send, answer
from ddp_gui.http.front import FORWARDED_KEY
from ddp_gui.http.hosts import Hosts, network_of
from ddp_gui.http.limits import (
    MAX_BODY_BYTES,
    MAX_PATH_LENGTH,
    NO_HOST,
    AtOnce,
    check_body,
    check_headers,
    drop_body,
)

FORM_BYTES = 100_000  # what a form adds to the file in it
FROM_ELSEWHERE = (
    "Requests from another site are refused. If this page is served over https by a proxy in front of "
    "it, the proxy must send X-Forwarded-Proto and be named with --proxy-from."
)


class Gate:
    """ASGI middleware: refuses foreign hosts and origins, enforces limits, adds the security headers."""

    def __init__(self, app: App, host: str, allowed: Sequence[str] = ()) -> None:
        self._app = app
        # Names given by `--host` and `--allow-host`: a proxy may use another one, so pages from there are
        # ours too.
        self._given = list(allowed)
        self._allowed = {name.lower() for name in allowed}
        self._hosts = Hosts([host, *allowed])
        self._at_once = AtOnce()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "websocket":
            # Nothing here uses WebSockets, and browsers open them across sites.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        loop_delay.begin_request(scope)
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = policies.merged(message.get("headers", []))
            await send(message)

        try:
            self._check(scope)
            with self._at_once.one_more(network_of((scope.get("client") or ("",))[0])):
                await self._app(scope, receive, send_with_headers)
        except Refused as refused:
            await drop_body(scope, receive)
            await answer(send_with_headers, refused)
        finally:
            # Otherwise the server below would answer our internal errors, without our headers.
            if not has_begun:
                await answer(send_with_headers, Refused(500, "Something went wrong on the server."))

    def _check(self, scope: Scope) -> None:
        check_headers(scope)
        hosts = self._hosts_of(scope)
        if len(hosts) != 1 or not self._hosts.are_ours(hosts[0]):
            raise Refused(
                403,
                "This server does not serve this host name. Use the machine's IP address instead, or start "
                "the page with --allow-host NAME. A proxy must pass on the browser's Host header.",
            )
        if not scope["path"].startswith("/"):
            raise Refused(400, "A path must begin with a slash.")
        if len(scope["path"]) > MAX_PATH_LENGTH:
            raise Refused(414, f"A path has at most {MAX_PATH_LENGTH:,} characters here.")
        if _is_from_elsewhere(scope, {hosts[0].lower(), *self._allowed}):
            raise Refused(403, FROM_ELSEWHERE)
        if hosts[0] in _own_addresses(scope) and scope.get(FORWARDED_KEY) and route_path(scope) == "/":
            # Gradio's page asks for everything below the address in Host, and would stay empty.
            raise Refused(
                400, f"{NO_HOST} Or start the page with --allow-host NAME, the name in that address."
            )
        is_upload = scope["path"].rstrip("/").endswith(UPLOAD)
        check_body(scope, uploads.MAX_BYTES + FORM_BYTES if is_upload else MAX_BODY_BYTES)

    def _hosts_of(self, scope: Scope) -> list[str]:
        """Return the values of Host; where a proxy does not pass it on, the name given by `--allow-host`."""
        hosts = _values(scope, b"host")
        # Never in place of any other name: a page of another site could send it (DNS rebinding).
        is_lost = not hosts or (len(hosts) == 1 and hosts[0] in _own_addresses(scope))
        if not (is_lost and scope.get(FORWARDED_KEY) and self._given):
            return hosts
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [(b"host", self._given[0].encode("latin-1")), *others]
        return [self._given[0]]


def _own_addresses(scope: Scope) -> set[str]:
    """Return how a proxy names this server itself, which is not how a browser names the proxy."""
    host, port = scope.get("server") or ("", None)
    return {f"{name}:{port}" for name in (host, f"[{host}]", "localhost", "127.0.0.1")}


def _is_from_elsewhere(scope: Scope, ours: Collection[str]) -> bool:
    """Tell whether the request comes from another site's page; a top-level navigation is allowed."""
    # The same name over http and over https is two origins.
    scheme = scope.get("scheme", "http")
    origins = {f"{scheme}://{name}" for name in ours}
    if any(origin.lower() not in origins for origin in _values(scope, b"origin")):
        return True
    # Browsers send Fetch Metadata only to trustworthy origins: over TLS, and to this machine itself.
    site = _values(scope, b"sec-fetch-site")
    if not set(site) & {"cross-site", "same-site"}:
        return False
    is_link = _values(scope, b"sec-fetch-mode") == ["navigate"] and scope["method"] in ("GET", "HEAD")
    return not (is_link and _values(scope, b"sec-fetch-dest") in (["document"], []))


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
