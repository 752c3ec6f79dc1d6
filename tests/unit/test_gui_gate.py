"""The gate: who is let in, by Host and by Origin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ddp_gui.gate import Gate


def status_of(host: str, origin: str | None = None) -> int:
    """Return the status of a request through the gate to an app that answers 200."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"ALLOW")]}
        )
        await send({"type": "http.response.body", "body": b""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin is not None else [])
    asyncio.run(Gate(app, "lab.example")({"type": "http", "headers": headers}, receive, send))
    if sent[0]["status"] == 200:
        assert (b"x-frame-options", b"SAMEORIGIN") in sent[0]["headers"]
        assert (b"x-frame-options", b"ALLOW") not in sent[0]["headers"]
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:7860", None),
        ("127.0.0.1:7860", "http://127.0.0.1:7860"),
        ("[::1]:7860", None),
        ("192.168.1.5:7860", "http://192.168.1.5:7860"),
        ("lab.example", "https://lab.example"),
    ],
)
def test_our_own_page_is_let_in(host: str, origin: str | None) -> None:
    assert status_of(host, origin) == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("evil.example", None),
        ("localhost.evil.example", None),
        ("", None),
        ("localhost:7860", "http://evil.example"),
        ("localhost:7860", "http://localhost:9999"),
        ("localhost:7860", "null"),
    ],
)
def test_foreign_names_and_origins_are_refused(host: str, origin: str | None) -> None:
    assert status_of(host, origin) == 403
