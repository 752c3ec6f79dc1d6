"""The routes to log in and out, for browsers and for `gradio_client` alike."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote, unquote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from ddp_gui.auth import login_page
from ddp_gui.auth.current_user import current_user
from ddp_gui.auth.login import DEVICE_FOR_S, Login, LoginError
from ddp_gui.http import front, policies

MAX_FORM_BYTES = 4096
MAX_FIELDS = 10
NO_STORE = {"Cache-Control": "no-store"}
PAGE = NO_STORE | {policies.POLICY_HEADER.decode(): policies.own_page()}


def make_router(login: Login | None, *, has_header: bool = False) -> APIRouter:
    """Return the routes; without accounts of this page only `/live/me`.

    Args:
        has_header: a proxy logs people in, so there is no log out here.
    """
    router = APIRouter()

    @router.get("/live/me")
    def me() -> JSONResponse:
        person = current_user()
        about = {
            "has_login": has_header or login is not None,
            "has_logout": login is not None,
            "name": person.name,
            "role": person.role,
        }
        return JSONResponse(about, headers=NO_STORE)

    if login is not None:
        _add_login(router, login)
    return router


def _add_login(router: APIRouter, login: Login) -> None:
    @router.get("/login", include_in_schema=False)
    def show(request: Request, next: str = "") -> Response:  # noqa: A002 - the address's own word
        if login.person(_cookies(request).get(login.cookie_name)) is not None:
            return _to(request, next)
        return HTMLResponse(login_page.render(next), headers=PAGE)

    @router.post("/login", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        is_person = "text/html" in request.headers.get("accept", "")
        given, wished, name = _cookies(request), "", ""
        device = given.get(login.device_cookie_name)
        address = request.client.host if request.client else ""
        try:
            form = await _form(request)
            wished, name = form.get("next", ""), form["username"]
            token = await login.begin(name, form["password"], address, device)
        except LoginError as error:
            return _refused(error, login_page.render(wished, name, str(error)) if is_person else None)
        # Always a new token, so that a planted one is never promoted (session fixation).
        login.end(given.get(login.cookie_name))
        response = _to(request, wished) if is_person else JSONResponse({"success": True}, headers=NO_STORE)
        response.set_cookie(login.cookie_name, token, httponly=True, **_cookie(request))
        device = login.device_token(name, device)
        lasting = {"max_age": DEVICE_FOR_S, **_cookie(request)}
        response.set_cookie(login.device_cookie_name, device, httponly=True, **lasting)
        return response

    @router.post("/logout", include_in_schema=False)
    def log_out(request: Request) -> Response:
        login.end(_cookies(request).get(login.cookie_name))
        response = _to(request, "login")
        response.delete_cookie(login.cookie_name, httponly=True, **_cookie(request))
        return response


def _to(request: Request, wished: str) -> Response:
    """Redirect to an address below our root: the target is always a path of this page."""
    path = quote(wished.lstrip("/\\"), safe="/?&=%+,:~-._")
    # A browser resolves `..`, also `%2e%2e`: outside our prefix there may be another site.
    if ".." in unquote(path.partition("?")[0]).split("/"):
        path = ""
    return RedirectResponse(f"{_root(request)}/{path}", status_code=303, headers=NO_STORE)


def _cookie(request: Request) -> dict[str, Any]:
    # Lax and not strict: following a link from the course's notes must not require a new login. A GET changes
    # nothing, and requests with another site's Origin are refused.
    is_tls = request.url.scheme == "https"
    return {"path": _root(request) or "/", "secure": is_tls, "samesite": "lax"}


def _cookies(request: Request) -> dict[str, str]:
    return front.cookies(request.scope["headers"])


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _refused(error: LoginError, page: str | None) -> Response:
    headers = dict(PAGE if page is not None else NO_STORE)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if page is not None:
        return HTMLResponse(page, status_code=error.status, headers=headers)
    return JSONResponse({"detail": str(error)}, status_code=error.status, headers=headers)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, with a name and a password.

    Raises:
        LoginError: when it is too long, or not such a form.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise LoginError(f"A login has at most {MAX_FORM_BYTES:,} bytes.", status=413)
    try:
        text = body.decode("utf-8")
        fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise LoginError(
            f"A login is a form in UTF-8 with at most {MAX_FIELDS} fields.", status=400
        ) from error
    if not {"username", "password"} <= fields.keys():
        raise LoginError("A login is a form with the fields username and password.", status=400)
    return {name: values[0] for name, values in fields.items()}
