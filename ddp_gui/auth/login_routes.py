"""Middleware that authenticates requests, and the routes for login and logout."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from ddp_gui.auth import login as login_module
from ddp_gui.auth import rights
from ddp_gui.auth.account_file import AccountError, validate_name
from ddp_gui.auth.login import DEVICE_COOKIE_S, Login, LoginError
from ddp_gui.auth.rights import Person, current_user
from ddp_gui.http import front
from ddp_gui.http.front import (
    MAX_REQUESTS_PER_USER,
    App,
    Message,
    Receive,
    Refused,
    RequestCounter,
    Scope,
    Send,
)

OPEN_PATHS = frozenset({"/login", *(f"/{file}" for file in login_module.FILES)})
# Maximum time that an open stream continues after the end of its session.
POLL_EVERY_S = 2.0
NOT_LOGGED_IN = "You are not logged in, or your session has ended. Log in, then try again."


class SessionGate:
    """ASGI middleware: requires a session and sets the current user."""

    def __init__(self, app: App, login: Login) -> None:
        self._app = app
        self._login = login
        self._requests = RequestCounter(MAX_REQUESTS_PER_USER, "from you")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or require a login."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = front.cookies(scope["headers"]).get(self._login.cookie_name)
        person = self._login.person(token)
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if person is None and path not in OPEN_PATHS:
            await _redirect_to_login(scope, path, send)
            return
        scope[rights.SCOPE_KEY] = user = person or rights.NOBODY
        with contextlib.ExitStack() as stack:
            stack.enter_context(rights.acting_as(user))
            if person is not None:
                stack.enter_context(self._requests.admit(person.name))
            if person is not None and scope["method"] == "GET":
                await self._serve_while_logged_in(token, scope, receive, send)
            else:
                await self._app(scope, receive, send)

    async def _serve_while_logged_in(
        self, token: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request that may be long-lived; it ends with the session."""
        response = _TrackedResponse(send)
        task = asyncio.ensure_future(self._app(scope, receive, response.send))
        try:
            while not (await asyncio.wait({task}, timeout=POLL_EVERY_S))[0]:
                if self._login.person(token, is_seen=False) is None:
                    break
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if task.cancelled():
            await response.finish()
        else:
            task.result()


class _TrackedResponse:
    """Tracks the sent parts of a response, so that an interrupted response can be completed correctly."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = forbid_caching(list(message.get("headers", [])))
            self._is_open = True
        elif not message.get("more_body", False):
            self._is_open = False
        await self._send(message)

    async def finish(self) -> None:
        if self._is_open:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def forbid_caching(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Forbid caching of pages: the next user of this computer must not see them with the back button."""
    if not any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers):
        return headers
    other_headers = [(name, value) for name, value in headers if name.lower() != b"cache-control"]
    return [*other_headers, (b"cache-control", b"no-store")]


async def _redirect_to_login(scope: Scope, path: str, send: Send) -> None:
    """Redirect a browser to the login page.

    Raises:
        Refused: if the client is not a browser that opens a page.
    """
    if not front.asks_for_page(scope, path):
        raise Refused(401, NOT_LOGGED_IN)
    query = scope.get("query_string", b"").decode("latin-1")
    next_url = f"{path.lstrip('/')}{'?' if query else ''}{query}"
    next_query = f"?next={quote(next_url, safe='')}" if next_url else ""
    location = f"{scope.get('root_path', '')}/login{next_query}".encode("latin-1", errors="replace")
    headers = [(b"location", location), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class HeaderGate:
    """ASGI middleware: sets the user from the proxy's header; users not in `teachers` are students."""

    def __init__(self, app: App, header: str, teachers: frozenset[str]) -> None:
        self._app = app
        self._header = header
        self._teachers = teachers
        self._requests = RequestCounter(MAX_REQUESTS_PER_USER, "from you")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refused: if the header does not contain exactly one name.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_uncached(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = forbid_caching(list(message.get("headers", [])))
            await send(message)

        scope[rights.SCOPE_KEY] = person = self._pop_person(scope)
        with rights.acting_as(person), self._requests.admit(person.name):
            await self._app(scope, receive, send_uncached)

    def _pop_person(self, scope: Scope) -> Person:
        """Return the user in the proxy's header, and remove the header, so that no other code reads it."""
        header_name = self._header.lower().encode("ascii")
        values = [value for name, value in scope["headers"] if name.lower() == header_name]
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name.lower() != header_name]
        name = _parse_name(values, self._header)
        return Person(name=name, role="teacher" if name in self._teachers else "student")


def _parse_name(values: list[bytes], header: str) -> str:
    """Return the account name in the header's values.

    Raises:
        Refused: if they are not exactly one valid name.
    """
    if not any(values):
        raise Refused(
            401,
            f"You are not logged in: the proxy of this page did not send a name in the header {header}.",
        )
    if len(values) > 1 or b"," in values[0]:
        raise Refused(
            400, f"The proxy in front of this page must send exactly one name in the header {header}."
        )
    text = values[0].decode("latin-1")
    if not (text.isascii() and text.isprintable()):
        raise Refused(
            400,
            f"The name in the header {header} contains non-ASCII characters. Names must be ASCII.",
        )
    try:
        return validate_name(text)
    except AccountError as error:
        hint = " The proxy should send the part before the @." if "@" in text else ""
        raise Refused(403, f"The name in {header} cannot be used: {error}.{hint}") from error


MAX_FORM_BYTES = 4096
MAX_FIELDS = 10
NO_STORE = {"Cache-Control": "no-store"}
PAGE_HEADERS = NO_STORE | {front.POLICY_HEADER.decode(): front.own_page_policy()}


def make_router(login: Login | None, *, has_header: bool = False) -> APIRouter:
    """Return the routes; without login only `/live/me`.

    Args:
        has_header: True if a proxy authenticates the users, so that this page needs no logout.
    """
    router = APIRouter()

    @router.get("/live/me")
    def me() -> JSONResponse:
        person = current_user()
        info = {
            "has_login": has_header or login is not None,
            "has_logout": login is not None,
            "name": person.name,
            "role": person.role,
        }
        return JSONResponse(info, headers=NO_STORE)

    if login is not None:
        _add_login(router, login)
    return router


def _add_login(router: APIRouter, login: Login) -> None:
    @router.get("/login", include_in_schema=False)
    def show(request: Request, next: str = "") -> Response:  # noqa: A002 - the address's own word
        if login.person(_cookies(request).get(login.cookie_name)) is not None:
            return _redirect(request, next)
        return HTMLResponse(login_module.render_login_page(next), headers=PAGE_HEADERS)

    @router.post("/login", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        is_browser = "text/html" in request.headers.get("accept", "")
        cookies, next_url, name = _cookies(request), "", ""
        device = cookies.get(login.device_cookie_name)
        address = request.client.host if request.client else ""
        try:
            form = await _read_form(request)
            next_url, name = form.get("next", ""), form["username"]
            token = await login.begin(name, form["password"], address, device)
        except LoginError as error:
            return _error_response(
                error, login_module.render_login_page(next_url, name, str(error)) if is_browser else None
            )
        # Always create a new token, so that a token planted by an attacker is never used (session fixation).
        login.end(cookies.get(login.cookie_name))
        response = (
            _redirect(request, next_url) if is_browser else JSONResponse({"success": True}, headers=NO_STORE)
        )
        response.set_cookie(login.cookie_name, token, httponly=True, **_cookie_options(request))
        device = login.device_token(name, device)
        options = {"max_age": DEVICE_COOKIE_S, **_cookie_options(request)}
        response.set_cookie(login.device_cookie_name, device, httponly=True, **options)
        return response

    @router.post("/logout", include_in_schema=False)
    def log_out(request: Request) -> Response:
        login.end(_cookies(request).get(login.cookie_name))
        response = _redirect(request, "login")
        response.delete_cookie(login.cookie_name, httponly=True, **_cookie_options(request))
        return response


def _redirect(request: Request, target: str) -> Response:
    """Redirect to a path of this page, below the root path."""
    path = quote(target.lstrip("/\\"), safe="/?&=%+,:~-._")
    # A browser resolves `..` and `%2e%2e`, which could lead to another site outside of the prefix.
    if ".." in unquote(path.partition("?")[0]).split("/"):
        path = ""
    return RedirectResponse(f"{_root(request)}/{path}", status_code=303, headers=NO_STORE)


def _cookie_options(request: Request) -> dict[str, Any]:
    # SameSite is lax, not strict, so that a link from course notes does not require a new login. This is safe
    # because a GET changes nothing, and requests with another site's Origin are refused.
    is_tls = request.url.scheme == "https"
    return {"path": _root(request) or "/", "secure": is_tls, "samesite": "lax"}


def _cookies(request: Request) -> dict[str, str]:
    return front.cookies(request.scope["headers"])


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _error_response(error: LoginError, page: str | None) -> Response:
    headers = dict(PAGE_HEADERS if page is not None else NO_STORE)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if page is not None:
        return HTMLResponse(page, status_code=error.status, headers=headers)
    return JSONResponse({"detail": str(error)}, status_code=error.status, headers=headers)


async def _read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form with a name and a password.

    Raises:
        LoginError: if it is too long or not such a form.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise LoginError(f"A login request may have at most {MAX_FORM_BYTES:,} bytes.", status=413)
    try:
        text = body.decode("utf-8")
        fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise LoginError(
            f"A login request must be a form in UTF-8 with at most {MAX_FIELDS} fields.", status=400
        ) from error
    if not {"username", "password"} <= fields.keys():
        raise LoginError("A login request must have the fields username and password.", status=400)
    return {name: values[0] for name, values in fields.items()}
