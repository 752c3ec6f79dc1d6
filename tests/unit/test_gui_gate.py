"""The gate: who is let in, by Host and by Origin, and how much may be asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ddp_gui.door import limits, policies
from ddp_gui.door.asgi import Refused
from ddp_gui.door.gate import Gate
from ddp_gui.door.gradio_door import is_open

HERE = "localhost:7860"


def answer_to(*headers: tuple[str, str], method: str = "GET", path: str = "/live/runs") -> dict[str, Any]:
    """Return the start of the answer to a request through the gate to an app that answers 200."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        theirs = [(b"x-frame-options", b"ALLOW")]
        await send({"type": "http.response.start", "status": 200, "headers": theirs})
        await send({"type": "http.response.body", "body": b""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": ("10.0.0.1", 5)}
    asyncio.run(Gate(app, "lab.example")(scope, receive, send))
    assert len([name for name, _ in sent[0]["headers"] if name == b"x-frame-options"]) == 1
    assert (b"x-frame-options", b"DENY") in sent[0]["headers"]
    assert any(name == policies.POLICY_HEADER for name, _ in sent[0]["headers"])
    return dict(sent[0])


def status_of(*headers: tuple[str, str], method: str = "GET", path: str = "/live/runs") -> int:
    return int(answer_to(*headers, method=method, path=path)["status"])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (HERE, None),
        ("LOCALHOST:7860", None),
        ("127.0.0.1:7860", "http://127.0.0.1:7860"),
        ("[::1]:7860", None),
        ("192.168.1.5:7860", "http://192.168.1.5:7860"),
        ("lab.example", "https://lab.example"),
    ],
)
def test_our_own_page_is_let_in(host: str, origin: str | None) -> None:
    assert status_of(("host", host), *([("origin", origin)] if origin else [])) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7860",
        "EVIL.example",
        "localhost.evil.example",
        "evil.localhost",
        "localhost.",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost:7860@evil.example",
        "localhost:7860/evil.example",
        "localhost:port",
        "localhost, evil.example",
        "127.0.0.1.evil.example",
        "127.1.evil",
        "[::1].evil.example",
        "[::1%25evil]",
        "[::ffff:evil]",
        "localhost\x00",
        " localhost",
        "",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert status_of(("host", host)) == 403


def test_two_names_or_none_are_refused() -> None:
    assert status_of(("host", HERE), ("host", HERE)) == 403
    assert status_of() == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:9999",
        "http://localhost",
        "http://localhost:7860@evil.example",
        "http://localhost:7860.evil.example",
        "null",
        "",
        "file://",
        "chrome-extension://localhost",
    ],
)
def test_other_origins_are_refused(origin: str) -> None:
    assert status_of(("host", HERE), ("origin", origin)) == 403
    # One that is ours beside it changes nothing.
    assert status_of(("host", HERE), ("origin", f"http://{HERE}"), ("origin", origin)) == 403


@pytest.mark.parametrize(
    ("site", "mode", "dest", "method", "status"),
    [
        ("same-origin", "cors", "empty", "POST", 200),
        ("none", "navigate", "document", "GET", 200),
        ("cross-site", "navigate", "document", "GET", 200),
        ("same-site", "navigate", "document", "GET", 200),
        ("cross-site", "navigate", "document", "POST", 403),
        ("cross-site", "navigate", "iframe", "GET", 403),
        ("cross-site", "navigate", "object", "GET", 403),
        ("cross-site", "no-cors", "image", "GET", 403),
        ("cross-site", "no-cors", "script", "GET", 403),
        ("same-site", "no-cors", "image", "GET", 403),
        ("same-site", "cors", "empty", "GET", 403),
        ("cross-site", "websocket", "websocket", "GET", 403),
    ],
)
def test_what_the_browser_says_of_the_sender_counts(
    site: str, mode: str, dest: str, method: str, status: int
) -> None:
    said = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)]
    assert status_of(("host", HERE), *said, ("content-length", "0"), method=method) == status


def test_a_whole_address_as_the_path_is_refused() -> None:
    assert status_of(("host", HERE), path="http://evil.example/live/runs") == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("content-length", "999999")], 200),
        ([("content-length", "1000001")], 413),
        ([("content-length", "9" * 4000)], 413),
        ([("content-length", "-1")], 411),
        ([("content-length", "5"), ("transfer-encoding", "chunked")], 411),
        ([("transfer-encoding", "chunked")], 411),
        ([], 411),
    ],
)
def test_a_body_says_how_long_it_is_and_is_not_too_long(headers: list[tuple[str, str]], status: int) -> None:
    path = "/gradio_api/run/start_run"
    assert status_of(("host", HERE), *headers, method="POST", path=path) == status


def test_an_address_and_headers_of_too_many_bytes_are_refused() -> None:
    enough = limits.MAX_HEADER_BYTES - 200
    assert status_of(("host", HERE), ("x", "a" * enough)) == 200
    assert status_of(("host", HERE), ("x", "a" * enough), ("y", "a" * 200)) == 431
    assert status_of(("host", HERE), path="/" + "a" * limits.MAX_HEADER_BYTES) == 431


@pytest.mark.parametrize(("length", "is_read"), [(1_000_001, True), (100_000_000, False)])
def test_a_refused_body_is_read_to_its_end_unless_that_is_far(length: int, is_read: bool) -> None:
    pieces = [{"type": "http.request", "more_body": True}, {"type": "http.request", "more_body": False}]

    async def receive() -> Any:
        return pieces.pop(0)

    scope = {"type": "http", "headers": [(b"content-length", str(length).encode())]}
    asyncio.run(limits.drop_body(scope, receive))
    assert (pieces == []) == is_read


def test_a_file_may_be_larger_but_not_without_end() -> None:
    path = "/gradio_api/upload"
    assert status_of(("host", HERE), ("content-length", "2000000000"), method="POST", path=path) == 200
    assert status_of(("host", HERE), ("content-length", "3000000000"), method="POST", path=path) == 413


def test_one_sender_has_only_so_many_requests_at_once_and_the_others_theirs() -> None:
    counted = limits.AtOnce(most=2)
    with counted.one_more("a"), counted.one_more("a"):
        with pytest.raises(Refused, match="Too many requests at once") as refused:
            counted.one_more("a").__enter__()
        assert refused.value.status == 429
        with counted.one_more("b"):
            pass
    with counted.one_more("a"):
        pass


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/config"),
        ("GET", "/theme.css"),
        ("GET", "/assets/index-DphvyggB.js"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/queue/data"),
        ("POST", "/gradio_api/queue/join"),
        ("POST", "/gradio_api/run/start_run"),
        ("POST", "/gradio_api/upload"),
    ],
)
def test_gradio_answers_what_the_page_needs(method: str, path: str) -> None:
    assert is_open(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("HEAD", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/proxy=http://127.0.0.1/"),
        ("GET", "/assets/../../../etc/passwd"),
        ("GET", "/assets/x/../../y"),
        ("GET", "/static/js/../../x"),
        ("GET", "//"),
        ("GET", "/monitoring"),
        ("GET", "/gradio_api/run/stop_run"),
        ("POST", "/gradio_api/component_server"),
        ("POST", "/gradio_api/run/a/b"),
        ("PUT", "/gradio_api/run/stop_run"),
        ("GET", "/assets/x\n"),
    ],
)
def test_gradio_answers_nothing_else(method: str, path: str) -> None:
    assert not is_open(method, path)
