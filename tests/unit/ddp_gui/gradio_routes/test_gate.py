"""The gate: checks of Host and Origin, limits on requests, and what may be sent to Gradio."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio import Queue
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import orjson
import pytest
from gradio.queueing import Event
from gradio.server_messages import EstimationMessage
from gradio.state_holder import StateHolder

from ddp_gui.auth import rights
from ddp_gui.auth.rights import DataAccess
from ddp_gui.gradio_routes import callers
from ddp_gui.gradio_routes.gate import Gate
from ddp_gui.gradio_routes.sent_values import MAX_DEPTH, MAX_FILES, Functions, read_checked_body
from ddp_gui.http import front
from ddp_gui.http.front import MAX_BYTES, MAX_PARTS, MAX_VALUES, Front, Refused
from tests.unit.class_of import BOB
from trainers.contract.config import Config, ConfigError

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
def test_numbers_are_not_cached_by_default(theirs: list[tuple[bytes, bytes]], kept: list[bytes]) -> None:
    found = [value for name, value in front.merge_policies(theirs) if name.lower() == b"cache-control"]
    assert found == kept


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
def test_our_own_page_is_let_in_by_its_scheme_alone(host: str, origin: str | None) -> None:
    scheme = origin.partition(":")[0] if origin else "http"
    other = "https" if scheme == "http" else "http"
    assert status_of(("host", host), *([("origin", origin)] if origin else []), scheme=scheme) == 200
    assert status_of(("host", host), ("origin", f"{other}://{host}"), scheme=scheme) == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "evil.localhost", "localhost@evil.example",
        "localhost:7860/evil.example", "localhost:port", "localhost, evil.example", "[::1%25evil]",
        "localhost\x00", "localhost:65536", "[127.0.0.1]", "１２７.0.0.1", "",
    ],
)  # fmt: skip
def test_other_names_are_refused(host: str) -> None:
    assert status_of(("host", host)) == 403
    assert status_of() == status_of(("host", HERE), ("host", HERE)) == 403, "none or two"
    assert status_of(("host", HERE), path="http://evil.example/live/runs") == 400


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
    asyncio.run(gate(scope | {"server": ("127.0.0.1", 7860)}, None, send))
    assert found == ([b"lab.example"] if is_named else [])
    assert sent[0]["status"] == (200 if is_named else 400 if host else 403)
    assert is_named or b"A proxy must pass on the" in sent[1]["body"]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "http://localhost:9999", "http://localhost:7860@evil.example", "null", "",
        "file://", "http://[", "http://localhost:7860 http://localhost:7860", "ws://localhost:7860",
    ],
)  # fmt: skip
def test_other_origins_are_refused(origin: str) -> None:
    assert status_of(("host", HERE), ("origin", origin)) == 403
    # An additional allowed origin does not change the result.
    assert status_of(("host", HERE), ("origin", f"http://{HERE}"), ("origin", origin)) == 403


@pytest.mark.parametrize(
    ("headers", "status", "path"),
    [
        ([("content-length", "999999")], 200, "run/start_run"),
        ([("content-length", "1000001")], 413, "run/start_run"),
        ([("content-length", "9" * 4000)], 413, "run/start_run"),
        ([("content-length", "-1")], 411, "run/start_run"),
        ([("content-length", "5"), ("transfer-encoding", "chunked")], 411, "run/start_run"),
        ([], 411, "run/start_run"),
        ([("content-length", "2000000000")], 200, "upload"),
        ([("content-length", "3000000000")], 413, "upload"),
    ],
)
def test_a_body_has_a_length_that_is_allowed(headers: list[tuple[str, str]], status: int, path: str) -> None:
    assert status_of(("host", HERE), *headers, method="POST", path=f"/gradio_api/{path}") == status


def test_an_address_and_headers_of_too_many_bytes_are_refused() -> None:
    enough = front.MAX_HEADER_BYTES - 200
    assert status_of(("host", HERE), ("x", "a" * enough)) == 200
    assert status_of(("host", HERE), ("x", "a" * enough), ("y", "a" * 200)) == 431
    assert status_of(("host", HERE), path="/" + "a" * front.MAX_HEADER_BYTES) == 431
    assert status_of(("host", HERE), path="/live/assets/js" + "/a" * 14_000) == 414
    # The email package, with which FastAPI parses this, needs seconds.
    assert status_of(("host", HERE), ("content-type", "application/json" + ';"' * 14_000)) == 431
    assert status_of(("host", HERE), ("range", "bytes=" + "0-," * 5_000)) == 431


def test_one_sender_has_only_so_many_requests_at_once_and_the_others_theirs() -> None:
    counted = front.RequestCounter(max_requests=2)
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
        states.session_data[session] = None
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
    with rights.acting_as(BOB):
        for session in ("ann~a", *(f"bob~{number}" for number in range(4))):
            queue.pending_messages_per_session[session] = Queue()
            queue.pending_event_ids_session[session] = set()
            for _ in range(4):
                event = Event(session, demo.fns[0], SimpleNamespace(), None)
                queue.pending_event_ids_session[session].add(event._id)
                queue.event_ids_to_events[event._id] = event
                events.append(event)
            callers.forget_oldest(queue)
    assert list(queue.pending_messages_per_session) == ["bob~open", "ann~a", "bob~2", "bob~3"]
    for event in events:
        # As Gradio does for all waiting events, in the task that serves all users.
        queue.send_message(event, EstimationMessage(rank=0, queue_size=1))
    assert [messages.qsize() for messages in queue.pending_messages_per_session.values()] == [0, 4, 4, 4]


NAMES = {0: "list_runs", 1: False, 7: "stop_run", 9: "delete_runs"}
FIELDS = [gr.Dropdown(render=False), gr.Textbox(render=False), gr.Dropdown(multiselect=True, render=False)]
INPUTS = {1: FIELDS, 7: [gr.UploadButton(render=False)]}
TAKEN = {"fn_index": 1, "data": ["a", None, ["b"]]}


def passed_on(incoming: Path, *pieces: bytes, called: str | None = None, inputs: Any = ()) -> bytes:
    """Return the forwarded body of a request whose body arrives in pieces."""
    waiting = [
        {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
        for at, piece in enumerate(pieces)
    ]

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def ask() -> bytes:
        again = await read_checked_body(
            receive, incoming, Functions(names=NAMES, called=called, inputs=dict(inputs))
        )
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
    body = orjson.dumps({"data": ['[{":,\\"' * (MAX_BYTES // 20)]})
    assert passed_on(tmp_path, body) == body, "what stands inside a string does not count"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "https://example.org/a.csv", "../a", "", "\0", "a" * 5000, 7, None, ["/etc"]]
)
@pytest.mark.parametrize("where", ["{}", '[{"a": {}}]'])
def test_a_file_that_was_not_uploaded_is_refused(tmp_path: Path, path: Any, where: str) -> None:
    value = where.replace("{}", orjson.dumps({"path": path}).decode())
    with pytest.raises(Refused, match="not uploaded"):
        passed_on(tmp_path / "none", b'{"data": [%s]}' % value.encode())


@pytest.mark.parametrize("body", [b"{", b"NaN", b'{"a": Infinity}', b"\xff", b'"\\ud800"', b"[" * 1_500])
def test_what_is_no_json_is_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(Refused, match="not valid JSON"):
        passed_on(tmp_path, body)


def test_depth_is_bounded(tmp_path: Path) -> None:
    passed_on(tmp_path, b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))
    for deep in (b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900):
        with pytest.raises(Refused, match=f"deeper than {MAX_DEPTH} levels"):
            passed_on(tmp_path, deep)


@pytest.mark.parametrize(
    "value",
    [dict.fromkeys(map(str, range(9_000)), 1), [0] * (MAX_VALUES + 2), [[]] * MAX_PARTS, [{}] * MAX_PARTS],
)
def test_the_number_of_values_is_bounded(tmp_path: Path, value: Any) -> None:
    passed_on(tmp_path, orjson.dumps({"data": [["a"] * (MAX_VALUES - 10)]}))
    with pytest.raises(Refused, match="more than 20,000 values"):
        passed_on(tmp_path, orjson.dumps({"data": [value]}))


def test_only_lists_of_ids_may_be_long(tmp_path: Path) -> None:
    body = orjson.dumps({"data": [[f"run-{number:036}" for number in range(15_000)]]})
    assert len(body) > MAX_BYTES
    assert passed_on(tmp_path, body, called="delete_runs") == body
    passed_on(tmp_path, body[:-1] + b', "fn_index": 9}')
    with pytest.raises(Refused, match="too large") as refused:
        passed_on(tmp_path, body, called="stop_run")
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "path", ["/usr/.." * 140_000, "x/../" * 900, "/usr/." * 800, "a" * 980_000, "//" * 3_000, "~/" * 2_100]
)
def test_a_long_path_touches_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """980 KB of ../x/../x blocked the page for 5.5 s."""

    def touched(*_: Any) -> None:
        pytest.fail("the disk was touched")

    for name in ("stat", "lstat", "readlink", "open"):
        monkeypatch.setattr(os, name, touched)
    for named in (path, str(tmp_path) + path):
        with pytest.raises(Refused, match=r"not uploaded|too large"):
            passed_on(tmp_path, orjson.dumps({"data": [{"path": named}]}))
        with pytest.raises(ConfigError, match="data_path is"):
            DataAccess(tmp_path).check(replace(Config(), data_path=named))


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    uploaded = tmp_path / "a.csv"
    uploaded.touch()
    passed_on(tmp_path, orjson.dumps({"data": [{"path": str(uploaded)}] * MAX_FILES}))
    with pytest.raises(Refused, match="names 5 files"):
        passed_on(tmp_path, orjson.dumps({"data": [{"path": str(uploaded)}] * (MAX_FILES + 1)}))


@pytest.mark.parametrize("number", [-1, 2, 10**18, True, 1.0, "1", [1]])
def test_a_function_that_is_not_there_is_refused(tmp_path: Path, number: Any) -> None:
    passed_on(tmp_path, orjson.dumps({"data": [], "fn_index": 7, "session_hash": "x"}))
    with pytest.raises(Refused, match="No function has this number") as refused:
        passed_on(tmp_path, orjson.dumps({"data": [], "fn_index": number, "session_hash": "x"}))
    assert refused.value.status == 404
    passed_on(tmp_path, b'{"data": []}', called="list_runs")
    # Gradio's own page calls all functions by number, under this name.
    passed_on(tmp_path, b'{"data": [], "fn_index": 1}', called="predict")
    with pytest.raises(Refused, match="No function has this name"):
        passed_on(tmp_path, b'{"data": [], "fn_index": null}', called="predict")


@pytest.mark.parametrize("session", [5, "", "a" * 65, "a b", "a\n", "\u0663", ["a"], True])
def test_a_session_is_named_plainly(tmp_path: Path, session: Any) -> None:
    with pytest.raises(Refused, match="letters and digits"):
        passed_on(tmp_path, orjson.dumps({"data": [], "session_hash": session}))


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (1, []), (1, ["a", "b"]), (1, {"a": 1}), (1, None), (1, [{"a": 1}, "b", []]), (1, ["a", [1], []]),
        (1, ["a", "b", [{}]]), (1, ["a", "b", "c"]), (7, ["a"]), (7, [None]), (7, [{"path": 1}]),
    ],
)  # fmt: skip
def test_values_that_a_field_never_has_are_refused(tmp_path: Path, number: int, data: Any) -> None:
    with pytest.raises(Refused) as refused:
        passed_on(tmp_path, orjson.dumps({"fn_index": number, "data": data}), inputs=INPUTS)
    assert refused.value.status == 400
    assert passed_on(tmp_path, orjson.dumps(TAKEN), inputs=INPUTS)
