"""The user's own proxy: which requests count as its own, and that no other page gains anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ddp_gui.gradio_routes.gate import Gate
from ddp_gui.http.front import Front
from ddp_gui.http.own_proxy import FRAMES_VARIABLE, ORIGIN_VARIABLE, SECRET_VARIABLE, OwnProxy

SECRET = "s3cret"
HUB = {"host": "hub.example.edu", "x-rankscope-proxy": SECRET, "x-forwarded-proto": "https,http"}
COLAB = "https://abc.colab.example"
FRAME = "https://colab.example"


def served(proxy: OwnProxy | None, method: str = "GET", **headers: str) -> tuple[int, dict[str, Any]]:
    """Return the status of a request, and what the app saw of it or the headers of the answer."""
    seen: dict[str, Any] = {}
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        names = {name.decode(): value.decode() for name, value in scope["headers"]}
        seen.update(scheme=scope["scheme"], headers=names)
        page = [(b"content-security-policy", b"img-src 'self'; frame-ancestors 'none'")]
        await send({"type": "http.response.start", "status": 200, "headers": page})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http", "method": method, "path": "/run", "query_string": b"", "scheme": "http",
        "server": ("127.0.0.1", 7860), "client": ("127.0.0.1", 5), "headers":
        [(name.encode(), value.encode()) for name, value in raw.items()],
    }  # fmt: skip
    if method == "POST":
        scope["headers"].append((b"content-length", b"0"))
    front = Front(Gate(app, "127.0.0.1", (), proxy), "")
    asyncio.run((front if proxy is None else proxy.wrap(front))(scope, receive, send))
    return sent[0]["status"], {**seen, "answer": dict(sent[0]["headers"])}


def test_with_the_secret_any_name_is_served_to_its_own_pages_only() -> None:
    proxy = OwnProxy(secret=SECRET)
    status, seen = served(proxy, **HUB)
    assert status == 200 and seen["scheme"] == "https"
    assert "x-rankscope-proxy" not in seen["headers"]
    assert served(proxy, "POST", **HUB, origin="https://hub.example.edu")[0] == 200
    assert served(proxy, "POST", **HUB, origin="https://evil.example")[0] == 403
    assert served(proxy, "POST", **HUB, sec_fetch_site="cross-site")[0] == 403
    assert served(proxy, **{**HUB, "host": "a b"})[0] == 403


@pytest.mark.parametrize("secret", ["", "wrong", "s3cre", "é"])
def test_without_the_secret_a_foreign_name_is_refused(secret: str) -> None:
    assert served(OwnProxy(secret=SECRET), **{**HUB, "x-rankscope-proxy": secret})[0] == 403
    assert served(OwnProxy(secret=SECRET), host="127.0.0.1:7860")[0] == 200
    assert served(None, **HUB)[0] == 403
    assert served(OwnProxy(origin=COLAB), **{**HUB, "x-rankscope-proxy": ""})[0] == 403


def test_a_known_origin_replaces_the_names_of_the_proxy_and_may_frame_the_page() -> None:
    proxy = OwnProxy(origin=COLAB, frames=(FRAME,))
    status, seen = served(proxy, "POST", host="localhost:7860", origin=COLAB)
    assert (status, seen["scheme"], seen["headers"]["host"]) == (200, "https", "abc.colab.example")
    assert served(proxy, "POST", host="localhost:7860", origin="https://evil.example")[0] == 403
    assert served(proxy, host="evil.example")[0] == 403  # DNS rebinding
    framed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
    status, seen = served(proxy, host="localhost:7860", **framed)
    assert status == 200
    assert seen["answer"][b"content-security-policy"] == b"img-src 'self'; frame-ancestors " + FRAME.encode()
    assert b"x-frame-options" not in seen["answer"]
    status, seen = served(OwnProxy(origin=COLAB), host="localhost:7860", **framed)
    assert status == 403 and seen["answer"][b"x-frame-options"] == b"DENY"


def test_jobs_do_not_inherit_the_variables_and_values_are_origins() -> None:
    variables = {
        SECRET_VARIABLE: "",
        ORIGIN_VARIABLE: COLAB,
        FRAMES_VARIABLE: f"{FRAME} {COLAB}",
        "PATH": "/bin",
    }
    assert OwnProxy.from_environment(variables) == OwnProxy(origin=COLAB, frames=(FRAME, COLAB))
    assert variables == {"PATH": "/bin"} and OwnProxy.from_environment(variables) is None
    for value in ("abc.example", "https://a/b", "https://a;script-src *", "ftp://a", "https://*.example"):
        with pytest.raises(ValueError, match="is not an origin"):
            OwnProxy.from_environment({ORIGIN_VARIABLE: value})
