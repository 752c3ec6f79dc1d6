"""What is sent to Gradio: JSON of bounded depth, and no file but an uploaded one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from ddp_gui.door.asgi import Refused
from ddp_gui.door.sent_values import MAX_DEPTH, checked_body


def passed_on(incoming: Path, *pieces: bytes) -> bytes:
    """Return the body that is passed on of one that arrives in pieces."""
    waiting = [
        {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
        for at, piece in enumerate(pieces)
    ]

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def ask() -> bytes:
        again = await checked_body(receive, incoming)
        message = await again()
        assert (await again())["type"] == "http.disconnect"
        return bytes(message["body"])

    return asyncio.run(ask())


def test_what_is_fine_is_passed_on_as_it_came(tmp_path: Path) -> None:
    uploaded = tmp_path / "a.csv"
    uploaded.touch()
    body = orjson.dumps({"data": [{"path": str(uploaded)}, {"data_path": "/etc"}, 1.5, None]})
    assert passed_on(tmp_path, body[:9], body[9:]) == body
    assert passed_on(tmp_path, b"") == b""


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "https://example.org/a.csv", "../a", "", "\0", "a" * 5000, 7, None, ["/etc"]]
)
@pytest.mark.parametrize("where", ["{}", '[{"a": {}}]'])
def test_a_file_that_was_not_uploaded_is_refused(tmp_path: Path, path: Any, where: str) -> None:
    value = where.replace("{}", orjson.dumps({"path": path}).decode())
    with pytest.raises(Refused, match="not uploaded"):
        passed_on(tmp_path / "none", b'{"data": [%s]}' % value.encode())


@pytest.mark.parametrize("body", [b"{", b"NaN", b'{"a": Infinity}', b"\xff", b'"\\ud800"', b"[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(Refused, match="not JSON that can be used"):
        passed_on(tmp_path, body)


def test_depth_is_bounded(tmp_path: Path) -> None:
    passed_on(tmp_path, b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))
    for deep in (b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900):
        with pytest.raises(Refused, match=f"more than {MAX_DEPTH} deep"):
            passed_on(tmp_path, deep)
