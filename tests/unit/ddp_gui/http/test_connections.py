"""Connections that are held without a request are closed; slow responses are not interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from ddp_gui.http import connections, front, listening
from ddp_gui.http.connections import BoundedProtocol
from ddp_gui.http.listening import Listener
from tests.harness import wait_until
from tests.other_user import UID, needs_a_second_user

WITHIN_S = 0.4
# For requests that are sent in one piece, which other programs may delay.
ROOMY_S = 2.0
ANSWER_AFTER_S = 2.4


ASKING: contextvars.ContextVar[str] = contextvars.ContextVar("ASKING", default="")


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_a_request_knows_nothing_of_an_earlier_one_on_its_connection(is_pipelined: bool) -> None:
    """Behind a proxy, the requests on a connection belong to different users."""
    found: list[str] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            continue
        found.append(ASKING.get())
        ASKING.set("the first one")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    body = b"a" * 100_000
    with served(application=noting) as address, socket.create_connection(address) as sender:
        sender.settimeout(60)
        sender.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        # If the body arrives in pieces, reading pauses after the last one and resumes after the response.
        time.sleep(0.1)
        sender.sendall(body + (GET if is_pipelined else b""))
        for number in (1, 2):
            heard = b""
            while heard.count(b"\r\n\r\nok") < (2 if is_pipelined else 1):
                heard += sender.recv(1000)
            if is_pipelined:
                break
            if number == 1:
                sender.sendall(GET)
    assert found == ["", ""]


async def slow_app(scope: Any, receive: Any, send: Any) -> None:
    """Respond after a delay that exceeds the time limit for a request."""
    await asyncio.sleep(ANSWER_AFTER_S)
    await app(scope, receive, send)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Respond once the body has been received."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        continue
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def served(
    proxies: str = "",
    *,
    application: Any = None,
    is_one_users: bool = False,
    believes_names: bool = False,
    phones: Any = None,
    **tls: Any,
) -> Iterator[tuple[str, int]]:
    """Serve `app` as the page is served, and yield its address."""
    listener = Listener(
        socket.AF_INET,
        proxies,
        is_one_users=is_one_users,
        trusts_proxy_names=believes_names,
        lets_phones_in=phones is not None,
    )
    with listener:
        listener.bind(("127.0.0.1", 0))
        http = functools.partial(BoundedProtocol, listener=listener, phones=phones)
        config = uvicorn.Config(
            application or app, http=http, log_level="critical", lifespan="off", loop="asyncio", **tls
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until("the server", lambda: server.started, 30.0)
        yield listener.getsockname()
        server.should_exit = True
        thread.join(timeout=30)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(connections, "HEADERS_WITHIN_S", WITHIN_S)
    monkeypatch.setattr(connections, "BODY_PAUSE_LIMIT_S", WITHIN_S)
    with served() as here:
        yield here


def wait_for_end(sender: socket.socket) -> None:
    """Wait until the server closes the connection without sending anything."""
    sender.settimeout(60)
    with contextlib.suppress(ConnectionResetError):
        assert sender.recv(100) == b""


@pytest.mark.parametrize(
    "words",
    [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"],
)
def test_who_does_not_finish_asking_is_cut_off(address: tuple[str, int], words: bytes) -> None:
    began = time.monotonic()
    with socket.create_connection(address) as sender:
        with contextlib.suppress(ConnectionError):  # after a long delay it is already closed
            sender.sendall(words)
        wait_for_end(sender)
    # The server starts its timer after this test does, even if one of the two is delayed.
    assert time.monotonic() - began > 0.9 * WITHIN_S


def is_cut_off(sender: socket.socket, words: bytes, pause_s: float = 0.0) -> bool:
    """Send words until the server closes the connection; return False if it does not within a minute."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            sender.sendall(words)
        except OSError:
            return True
        time.sleep(pause_s)
    return False


@pytest.mark.parametrize(
    "begun", [b"", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n"], ids=["headers", "a body"]
)
def test_who_drips_gains_no_time(address: tuple[str, int], begun: bytes) -> None:
    with socket.create_connection(address) as sender:
        sender.sendall(begun)
        assert is_cut_off(sender, b"X", 0.05)


def test_who_waits_for_a_slow_answer_gets_it_and_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS_WITHIN_S", ROOMY_S)
    monkeypatch.setattr(connections, "BODY_PAUSE_LIMIT_S", WITHIN_S)
    with served(application=slow_app) as address:
        client = http.client.HTTPConnection(*address, timeout=300)
        for wait_s in (0.0, 1.2 * ROOMY_S):
            time.sleep(wait_s)
            client.request("GET", "/")
            assert client.getresponse().read() == b"ok"
        client.close()


def answered(address: tuple[str, int], source: str = "127.0.0.1") -> bool:
    """Return True if a client at this address gets a response."""
    client = http.client.HTTPConnection(*address, timeout=20, source_address=(source, 0))
    with contextlib.closing(client), contextlib.suppress(ConnectionError, http.client.HTTPException):
        client.request("GET", "/")
        return client.getresponse().read() == b"ok"
    return False


def begin(address: tuple[str, int], source: str, words: bytes = b"") -> socket.socket:
    """Open a connection from an address of this machine and start a request."""
    sender = socket.create_connection(address, source_address=(source, 0))
    sender.sendall(words)
    return sender


@pytest.mark.parametrize(
    "words",
    [b"", b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"],
    ids=["silent", "headers", "body"],
)
def test_whoever_holds_connections_shuts_nobody_out(monkeypatch: pytest.MonkeyPatch, words: bytes) -> None:
    with served() as address, contextlib.ExitStack() as held:
        for number in range(640):
            held.enter_context(contextlib.suppress(ConnectionError))
            held.enter_context(begin(address, f"127.0.0.{2 + number % 2}", words if number > 500 else b""))
        assert answered(address, "127.0.0.9"), "somebody else"
        assert answered(address, "127.0.0.2"), "somebody behind the same address"


def test_one_address_has_its_share_and_all_together_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_PER_ADDRESS", 4)
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 6)
    with served() as address, contextlib.ExitStack() as held:
        first = [held.enter_context(begin(address, "127.0.0.2")) for _ in range(5)]
        # The fifth connection is accepted, and the first, which has waited longest, is closed instead.
        wait_for_end(first[0])
        others = [held.enter_context(begin(address, "127.0.0.3")) for _ in range(3)]
        wait_for_end(first[1])
        for sender in (*first[2:], *others):
            sender.setblocking(False)
            with pytest.raises(BlockingIOError):
                sender.recv(1)


def test_what_is_being_answered_is_never_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_PER_ADDRESS", 2)
    asked: list[str] = []
    may_answer = threading.Event()

    async def held_up(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["type"])
        await asyncio.to_thread(may_answer.wait, 60)
        await app(scope, receive, send)

    with served(application=held_up) as address, contextlib.ExitStack() as held:
        asking = [held.enter_context(begin(address, "127.0.0.2", GET)) for _ in range(2)]
        wait_until("both being asked for", lambda: len(asked) == 2, 60)
        refused = held.enter_context(begin(address, "127.0.0.2"))
        wait_for_end(refused)
        may_answer.set()
        for sender in asking:
            sender.settimeout(60)
            assert sender.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("proxies", ["127.0.0.2", "10.0.0.1, 127.0.0.0/8", "*"])
def test_behind_a_proxy_only_the_total_limit_counts(monkeypatch: pytest.MonkeyPatch, proxies: str) -> None:
    monkeypatch.setattr(listening, "MAX_PER_ADDRESS", 1)
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 3)
    with served(proxies) as address, contextlib.ExitStack() as held:
        senders = [held.enter_context(begin(address, "127.0.0.2")) for _ in range(4)]
        wait_for_end(senders[0])
        assert answered(address, "127.0.0.2")


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "words",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
        b"POST / HTTP/1.1\r\nHost: a\r\ncontent-length: 1\r\nX: y\r\nCONTENT-LENGTH:1\r\n\r\n1",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n1",
        b"POST / HTTP/1.1\nHost: a\nContent-Length: 1\nContent-Length: 1\n\n1",
        GET + b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
        b"no request\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 300 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        GET + b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 9_000,
    ],
)
def test_a_bad_head_is_refused_with_our_headers(address: tuple[str, int], words: bytes) -> None:
    with socket.create_connection(address) as sender:
        sender.settimeout(60)
        sender.sendall(words)
        heard = b"".join(iter(lambda: sender.recv(10_000), b""))
    refusal = heard[heard.rindex(b"HTTP/1.1") :].lower()
    status = 431 if len(words) > 40_000 or b"a:\r\na:" in words else 411 if b"chunked" in words else 400
    assert refusal.startswith(b"http/1.1 %d" % (411 if b"chunked" in words else status))
    for name, value in (*front.HEADERS, (front.POLICY_HEADER, front.DATA.encode())):
        assert b"%s: %s\r\n" % (name, value.lower()) in refusal


def test_a_refused_request_is_read_to_end(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 60.0)
    with socket.create_connection(address) as sender:
        sender.settimeout(60)
        sender.sendall(b"no request\r\n\r\n")
        heard = b"".join(iter(lambda: sender.recv(10_000), b""))
        for _ in range(3):  # a closed connection answers the first with a reset, and the next one fails
            sender.sendall(b"X: y\r\n" * 10_000)
    assert heard.startswith(b"HTTP/1.1 400")
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    with socket.create_connection(address) as sender:
        sender.sendall(b"no request\r\n\r\n")
        assert is_cut_off(sender, b"X" * 10_000), "but not for ever"


def test_a_length_in_a_body_is_no_header(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as sender:
        sender.settimeout(60)
        body = b"\nContent-Length: 1\nContent-Length: 1\n\n"
        sender.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert sender.recv(100).startswith(b"HTTP/1.1 200")


@needs_a_second_user
@pytest.mark.usefixtures("way")
def test_another_user_of_this_machine_asks_for_nothing_where_nobody_logs_in() -> None:
    asked: list[str] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
        await app(scope, receive, send)

    with served(application=noting, is_one_users=True) as address:
        with begin_as_other_user(address, GET) as foreign:
            foreign.settimeout(20)
            told = b"".join(iter(lambda: foreign.recv(4096), b""))
        # A client that disconnects before the check has no owner.
        begin_as_other_user(address, b"GET /quick HTTP/1.1\r\nHost: a\r\n\r\n").close()
        assert answered(address)
    assert told.startswith(b"HTTP/1.1 403") and b"belongs to another user of this machine" in told
    assert asked == ["/"], "only ours was answered"
    with served() as address, begin_as_other_user(address, GET) as student:
        student.settimeout(20)
        assert student.recv(100).startswith(b"HTTP/1.1 200"), "where people log in he may"


@needs_a_second_user
@pytest.mark.usefixtures("way")
def test_where_phones_may_answer_strangers_reach_what_is_for_phones_alone() -> None:
    served_by: list[str] = []

    def noting(name: str) -> Any:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                served_by.append(name)
            await app(scope, receive, send)

        return application

    with served(application=noting("page"), is_one_users=True, phones=noting("phones")) as address:
        with begin_as_other_user(address, GET) as foreign:
            foreign.settimeout(20)
            assert foreign.recv(100).startswith(b"HTTP/1.1 200")
        assert answered(address)
        # A second request on the same connection also counts as another user's.
        with begin_as_other_user(address, GET) as foreign:
            foreign.settimeout(20)
            heard = b""
            for number in (1, 2):
                while heard.count(b"\r\n\r\nok") < number:
                    heard += foreign.recv(1000)
                if number == 1:
                    foreign.sendall(GET)
            assert heard.count(b"HTTP/1.1 200") == 2
    assert served_by == ["phones", "page", "phones", "phones"]


@needs_a_second_user
def test_another_user_s_connections_close_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_table: Any) -> bytes:
        raise AssertionError("the table of all connections was read")

    monkeypatch.setattr(listening, "_read_table", read)
    monkeypatch.setattr(listening, "MAX_PER_ADDRESS", 4)
    for is_one_users in (True, False):
        with served(is_one_users=is_one_users) as address, contextlib.ExitStack() as held:
            ours = [held.enter_context(begin(address, "127.0.0.1")) for _ in range(4)]
            for number in range(listening.MAX_ACCEPTED_AT_ONCE + 8):
                uid = UID if number % 2 else UID - 1
                held.enter_context(begin_as_other_user(address, b"", uid))
            assert answered(address, "127.0.0.1")
            # Our fifth connection closed our first; those of other users closed none.
            for sender in ours[1:]:
                sender.setblocking(False)
                with pytest.raises(BlockingIOError):
                    sender.recv(1)


def begin_as_other_user(address: tuple[str, int], words: bytes, uid: int = UID) -> socket.socket:
    """Send a request over a connection that another user owns."""
    sender = socket.socket()
    os.fchown(sender.fileno(), uid, uid)
    sender.connect(address)
    sender.sendall(words)
    return sender


@pytest.fixture(params=["netlink", "tables"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Query the kernel for one connection, or read the tables of all if the query is not permitted."""
    if request.param == "tables":
        monkeypatch.setattr(listening, "is_instant", lambda: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_of_our_own_is_told_from_one_that_nobody_holds(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener, socket.socket(family) as sender:
        listener.bind((host, 0))
        listener.listen()
        sender.connect(listener.getsockname())
        server, client = listener.getsockname()[:2], sender.getsockname()[:2]
        for address in (client, (f"::ffff:{host}", client[1])) if host[0] == "1" else (client,):
            assert listening.owner(address, server) == os.geteuid()
        assert listening.owner((host, 1), server) is None
        assert listening.owner(server, (host, 1)) is None, "the kernel answers for what listens there"
        sender.close()
        assert listening.owner(client, server) is None


def test_under_wsl_a_browser_of_windows_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        uid = listening.owner(("127.0.0.1", 1), server.getsockname())
        assert not listening.is_page_owner(uid), "nobody holds such a connection"
        monkeypatch.setattr("platform.release", lambda: "6.6.87.2-microsoft-standard-WSL2")
        assert listening.is_page_owner(uid)


@needs_a_second_user
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("uid", "is_proxy"), [(0, True), (33, True), (999, True), (1000, False), (UID, False)]
)
def test_over_loopback_only_a_system_account_is_the_proxy(uid: int, is_proxy: bool) -> None:
    with served("127.0.0.1", believes_names=True) as address:
        with begin_as_other_user(address, GET, uid) as sender:
            sender.settimeout(60)
            told = sender.recv(4096)
            while not is_proxy and (more := sender.recv(4096)):
                told += more
        # A client that disconnects before the check has no owner.
        begin_as_other_user(address, GET, UID).close()
    assert told.startswith(b"HTTP/1.1 200" if is_proxy else b"HTTP/1.1 403")
    assert (b"only through a proxy" in told) is not is_proxy


def test_the_proxy_is_the_pages_own_user_at_the_proxys_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with served("127.0.0.1", believes_names=True) as address:
        assert answered(address)
        with begin(address, "127.0.0.2", GET) as elsewhere:
            elsewhere.settimeout(60)
            assert elsewhere.recv(100).startswith(b"HTTP/1.1 403")
        monkeypatch.setattr(listening, "_TABLES", ())
        monkeypatch.setattr(listening, "is_instant", lambda: False)
        with begin(address, "127.0.0.1", GET) as unknown:
            unknown.settimeout(60)
            assert unknown.recv(100).startswith(b"HTTP/1.1 403"), "without a table of connections nobody is"
