"""Connections that are held without asking anything are ended; a slow answer is not."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from ddp_gui.door import connections
from ddp_gui.door.connections import BoundedProtocol
from tests.harness import wait_until

ANSWER_AFTER_S = 0.9


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer after a while, longer than anybody may take to ask."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        continue
    await asyncio.sleep(ANSWER_AFTER_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(connections, "HEADERS_WITHIN_S", 0.4)
    monkeypatch.setattr(connections, "BODY_GOES_ON_WITHIN_S", 0.4)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 5)
    config = uvicorn.Config(app, port=0, http=BoundedProtocol, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until("the server", lambda: server.started, 30.0)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join(timeout=30)


def ended_after_s(sender: socket.socket) -> float:
    """Return how long it took until the server ended the connection without a word."""
    began = time.monotonic()
    sender.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        assert sender.recv(100) == b""
    return time.monotonic() - began


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1",
    ],
)
def test_who_does_not_finish_asking_is_cut_off(address: tuple[str, int], words: bytes) -> None:
    with socket.create_connection(address) as sender:
        sender.sendall(words)
        assert 0.3 < ended_after_s(sender) < 15.0


def test_who_dribbles_headers_gains_no_time(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as sender:
        deadline, is_cut_off = time.monotonic() + 15.0, False
        while not is_cut_off and time.monotonic() < deadline:
            try:
                sender.sendall(b"X")
            except OSError:
                is_cut_off = True
            time.sleep(0.05)
        assert is_cut_off


def test_who_waits_for_a_slow_answer_gets_it_and_may_ask_again(address: tuple[str, int]) -> None:
    client = http.client.HTTPConnection(*address, timeout=20)
    for _ in range(2):
        client.request("GET", "/")
        assert client.getresponse().read() == b"ok"
        time.sleep(0.6)
    client.close()


def test_there_are_only_so_many_connections(address: tuple[str, int]) -> None:
    senders = [socket.create_connection(address) for _ in range(8)]
    for sender in reversed(senders):
        # The last are ended at once, the others as they ask nothing: then there is room again.
        ended_after_s(sender)
        sender.close()
    client = http.client.HTTPConnection(*address, timeout=20)
    client.request("GET", "/")
    assert client.getresponse().read() == b"ok"
    client.close()
