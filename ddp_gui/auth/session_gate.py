"""The session check: without a session only the login page is served."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import quote

import orjson

from ddp_gui.auth import current_user, login_page
from ddp_gui.auth.login import Login
from ddp_gui.http import front
from ddp_gui.http.asgi import App, Message, Receive, Scope, Send
from ddp_gui.http.limits import MAX_AT_ONCE_OF_ONE, AtOnce

OPEN_PATHS = frozenset({"/login", *(f"/{file}" for file in login_page.FILES)})
NO_PAGES = ("/live/", "/gradio_api/", "/config", "/heartbeat", "/assets/", "/static/", "/theme.css")
# How soon an open stream ends after its session.
POLL_EVERY_S = 2.0
NOT_LOGGED_IN = "You are not logged in, or no longer. Log in, then try again."


class SessionGate:
    """ASGI middleware: requires a session and sets the current user."""

    def __init__(self, app: App, login: Login) -> None:
        self._app = app
        self._login = login
        self._at_once = AtOnce(MAX_AT_ONCE_OF_ONE, "from you")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or require a login."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        token = front.cookies(scope["headers"]).get(self._login.cookie_name)
        person = self._login.person(token)
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if person is None and path not in OPEN_PATHS:
            await _refuse(scope, headers, path, send)
            return
        scope[current_user.SCOPE_KEY] = asker = person or current_user.NOBODY
        with contextlib.ExitStack() as stack:
            stack.enter_context(current_user.asked_by(asker))
            if person is not None:
                stack.enter_context(self._at_once.one_more(person.name))
            if person is not None and scope["method"] == "GET":
                await self._serve_while_logged_in(token, scope, receive, send)
            else:
                await self._app(scope, receive, send)

    async def _serve_while_logged_in(
        self, token: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a long-lived request; it ends with the session."""
        answer = _Answer(send)
        serving = asyncio.ensure_future(self._app(scope, receive, answer.send))
        try:
            while not (await asyncio.wait({serving}, timeout=POLL_EVERY_S))[0]:
                if self._login.person(token, is_seen=False) is None:
                    break
        finally:
            if not serving.done():
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving
        if serving.cancelled():
            await answer.finish()
        else:
            serving.result()


class _Answer:
    """Tracks what has been sent, so that an interrupted response can be completed correctly."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = not_kept(list(message.get("headers", [])))
            self._is_open = True
        elif not message.get("more_body", False):
            self._is_open = False
        await self._send(message)

    async def finish(self) -> None:
        if self._is_open:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def not_kept(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Forbid caching: the next person at this computer must not see these pages with the back button."""
    if not any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers):
        return headers
    others = [(name, value) for name, value in headers if name.lower() != b"cache-control"]
    return [*others, (b"cache-control", b"no-store")]


async def _refuse(scope: Scope, headers: dict[bytes, str], path: str, send: Send) -> None:
    """Redirect a browser to the login page; answer a program with 401."""
    asks_for_page = scope["method"] in ("GET", "HEAD") and "text/html" in headers.get(b"accept", "")
    is_page = asks_for_page and not path.startswith(NO_PAGES)
    if is_page:
        query = scope.get("query_string", b"").decode("latin-1")
        wished = f"{path.lstrip('/')}{'?' if query else ''}{query}"
        asks_more = f"?next={quote(wished, safe='')}" if wished else ""
        location = f"{scope.get('root_path', '')}/login{asks_more}".encode("latin-1", errors="replace")
        status, more, body = 303, [(b"location", location)], b""
    else:
        status, more, body = 401, [], orjson.dumps({"detail": NOT_LOGGED_IN})
    answer_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": answer_headers})
    await send({"type": "http.response.body", "body": body})
