"""Tests of the gate: checks of Host and Origin, and limits on requests."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Queue
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.queueing import Event
from gradio.server_messages import EstimationMessage
from gradio.state_holder import StateHolder

from ddp_gui.auth import rights
from ddp_gui.gradio_routes import callers
from ddp_gui.gradio_routes.gate import Gate
from ddp_gui.http import front
from ddp_gui.http.front import Front, Refused
from tests.unit.class_of import BOB

HERE = "localhost:7860"


def answer_to(
    *headers: tuple[str, str],
    method: str = "GET",
    path: str = "/live/runs",
    scheme: str = "http",
    app: Any = None,
) -> dict[str, Any]:
    """Return the start of the response to a request through the gate to an app that answers 200."""

    async def fine(_scope: Any, _receive: Any, send: Any) -> None:
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
    with contextlib.suppress(ZeroDivisionError):
        asyncio.run(
            Gate(app or fine, "lab.example", ["proxy.example"])(scope | {"scheme": scheme}, receive, send)
        )
    assert len([name for name, _ in sent[0]["headers"] if name == b"x-frame-options"]) == 1
    assert (b"x-frame-options", b"DENY") in sent[0]["headers"]
    assert any(name == front.POLICY_HEADER for name, _ in sent[0]["headers"])
    return dict(sent[0])


def status_of(
    *headers: tuple[str, str], method: str = "GET", path: str = "/live/runs", scheme: str = "http"
) -> int:
    return int(answer_to(*headers, method=method, path=path, scheme=scheme)["status"])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (HERE, None),
        ("LOCALHOST:7860", None),
        ("127.0.0.1:7860", "http://127.0.0.1:7860"),
        ("[::1]:7860", None),
        ("192.168.1.5:7860", "http://192.168.1.5:7860"),
        ("lab.example", "https://lab.example"),
        # A proxy that uses another name in its requests than browsers do.
        ("127.0.0.1:7860", "https://proxy.example"),
    ],
)
def test_our_own_page_is_let_in(host: str, origin: str | None) -> None:
    scheme = origin.partition(":")[0] if origin else "http"
    assert status_of(("host", host), *([("origin", origin)] if origin else []), scheme=scheme) == 200


@pytest.mark.parametrize(("scheme", "other"), [("http", "https"), ("https", "http")])
def test_the_same_name_by_another_scheme_is_another_site(scheme: str, other: str) -> None:
    for host, name in ((HERE, HERE), (HERE, "proxy.example"), ("lab.example", "lab.example")):
        assert status_of(("host", host), ("origin", f"{scheme}://{name}"), scheme=scheme) == 200
        assert status_of(("host", host), ("origin", f"{other}://{name}"), scheme=scheme) == 403


def test_a_fault_of_ours_is_answered_with_the_headers() -> None:
    async def faulty(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ZeroDivisionError

    assert answer_to(("host", HERE), app=faulty)["status"] == 500


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        ([(b"content-type", b"application/json")], [b"no-store"]),
        ([(b"content-type", b"text/event-stream"), (b"Cache-Control", b"no-cache")], [b"no-cache"]),
        ([(b"content-type", b"application/javascript"), (b"etag", b"a")], []),
        ([(b"content-type", b"text/html; charset=utf-8")], []),
        ([], [b"no-store"]),
    ],
)
def test_numbers_are_not_kept_by_browsers_unless_they_say_how(
    theirs: list[tuple[bytes, bytes]], kept: list[bytes]
) -> None:
    found = [value for name, value in front.merge_policies(theirs) if name.lower() == b"cache-control"]
    assert found == kept


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.localhost",
        "localhost@evil.example",
        "localhost:7860/evil.example",
        "localhost:port",
        "localhost, evil.example",
        "[::1%25evil]",
        "localhost\x00",
        "localhost:65536",
        "[127.0.0.1]",
        "１２７.0.0.1",
        "",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert status_of(("host", host)) == 403


@pytest.mark.parametrize("host", [None, "127.0.0.1:7860", "localhost:7860"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_proxy_that_keeps_the_host_to_itself(host: str | None, is_named: bool) -> None:
    """The page gets its address from `--allow-host`, or explains how to configure the proxy."""
    found, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(dict(scope["headers"])[b"host"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"x-forwarded-for", b"10.0.0.9"), *([(b"host", host.encode())] if host else [])]
    scope = {"type": "http", "method": "GET", "path": "/ddp/", "headers": headers, "client": ("10.0.0.9", 0)}
    gate = Front(Gate(app, "127.0.0.1", ["lab.example"] if is_named else []), "/ddp")
    asyncio.run(gate(scope | {"server": ("127.0.0.1", 7860)}, None, send))  # type: ignore[arg-type]
    assert found == ([b"lab.example"] if is_named else [])
    assert sent[0]["status"] == (200 if is_named else 400 if host else 403)
    assert is_named or b"A proxy must pass on the" in sent[1]["body"]


def test_two_names_or_none_are_refused() -> None:
    assert status_of(("host", HERE), ("host", HERE)) == 403
    assert status_of() == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:9999",
        "http://localhost:7860@evil.example",
        "null",
        "",
        "file://",
        "http://[",
        "http://localhost:7860 http://localhost:7860",
        "ws://localhost:7860",
    ],
)
def test_other_origins_are_refused(origin: str) -> None:
    assert status_of(("host", HERE), ("origin", origin)) == 403
    # An additional allowed origin does not change the result.
    assert status_of(("host", HERE), ("origin", f"http://{HERE}"), ("origin", origin)) == 403


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
    enough = front.MAX_HEADER_BYTES - 200
    assert status_of(("host", HERE), ("x", "a" * enough)) == 200
    assert status_of(("host", HERE), ("x", "a" * enough), ("y", "a" * 200)) == 431
    assert status_of(("host", HERE), path="/" + "a" * front.MAX_HEADER_BYTES) == 431
    assert status_of(("host", HERE), path="/live/assets/js" + "/a" * 14_000) == 414
    # The email package, with which FastAPI parses this, needs seconds.
    assert status_of(("host", HERE), ("content-type", "application/json" + ';"' * 14_000)) == 431
    assert status_of(("host", HERE), ("range", "bytes=" + "0-," * 5_000)) == 431


@pytest.mark.parametrize(("length", "is_read"), [(1_000_001, True), (100_000_000, False)])
def test_a_refused_body_is_read_to_its_end_unless_that_is_far(length: int, is_read: bool) -> None:
    pieces = [{"type": "http.request", "more_body": True}, {"type": "http.request", "more_body": False}]

    async def receive() -> Any:
        return pieces.pop(0)

    scope = {"type": "http", "headers": [(b"content-length", str(length).encode())]}
    asyncio.run(front.drop_body(scope, receive))
    assert (pieces == []) == is_read


def test_a_file_may_be_larger_but_not_without_end() -> None:
    path = "/gradio_api/upload"
    assert status_of(("host", HERE), ("content-length", "2000000000"), method="POST", path=path) == 200
    assert status_of(("host", HERE), ("content-length", "3000000000"), method="POST", path=path) == 413


def test_one_sender_has_only_so_many_requests_at_once_and_the_others_theirs() -> None:
    counted = front.RequestCounter(most=2)
    with counted.admit("a"), counted.admit("a"):
        with pytest.raises(Refused, match="Too many requests at once") as refused:
            counted.admit("a").__enter__()
        assert refused.value.status == 429
        with counted.admit("b"):
            pass
    with counted.admit("a"):
        pass


def test_who_begins_many_sessions_loses_his_own_and_nobody_else_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_SESSIONS", 5)
    with gr.Blocks() as demo:
        pass
    queue, states = demo._queue, StateHolder()
    for session in ("ann~a", "eve~a", *(f"bob~{number}" for number in range(40))):
        queue.pending_messages_per_session[session] = Queue()
        states.session_data[session] = None  # type: ignore[assignment]
        callers.forget_oldest(queue, states)
    left = ["ann~a", "eve~a", "bob~37", "bob~38", "bob~39"]
    assert list(queue.pending_messages_per_session) == list(states.session_data) == left


def test_what_one_person_asks_for_and_never_fetches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_UNFETCHED", 10)
    with gr.Blocks() as demo:
        gr.Button().click(lambda: None)
    queue, events = demo._queue, []
    # A window that has fetched all of its results.
    queue.pending_messages_per_session["bob~open"] = Queue()
    queue.pending_event_ids_session["bob~open"] = set()
    with rights.asked_by(BOB):
        for session in ("ann~a", *(f"bob~{number}" for number in range(4))):
            queue.pending_messages_per_session[session] = Queue()
            queue.pending_event_ids_session[session] = set()
            for _ in range(4):
                event = Event(session, demo.fns[0], SimpleNamespace(), None)  # type: ignore[arg-type]
                queue.pending_event_ids_session[session].add(event._id)
                queue.event_ids_to_events[event._id] = event
                events.append(event)
            callers.forget_oldest(queue)
    assert list(queue.pending_messages_per_session) == ["bob~open", "ann~a", "bob~2", "bob~3"]
    for event in events:
        # As Gradio does for all waiting events, in the task that serves all users.
        queue.send_message(event, EstimationMessage(rank=0, queue_size=1))
    assert [messages.qsize() for messages in queue.pending_messages_per_session.values()] == [0, 4, 4, 4]
