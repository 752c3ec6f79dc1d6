"""Tests of the layer in front of a page that others can reach: options, prefix, and sessions that end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import app as program
from ddp_gui import options
from ddp_gui.auth import login_routes, rights
from ddp_gui.auth.login import Login
from ddp_gui.auth.login_routes import SessionGate
from ddp_gui.http.front import Front, Refused, asks_for_page
from ddp_gui.run import stream
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, password_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--host 0.0.0.0", "python -m ddp_gui.accounts .* --auth-file accounts.json, or add --insecure"),
        ("--allow-host lab.example", "makes the page reachable by that name"),
        ("--proxy-from 127.0.0.1", "through a proxy"),
        ("--ssl-keyfile key.pem", "must be used together"),
        ("--engine slurm --auth-file accounts.json", "does not exist"),
        ("--engine slurm --insecure --host 0.0.0.0", "as the user who started the page"),
        (
            "--engine ssh --site a.toml --insecure --host 0.0.0.0",
            "the SSH keys of the user who started the page",
        ),
        ("--engine ssh", "needs --site FILE, whose table .ssh. must name the hosts"),
        ("--site site.toml", "add --engine slurm or --engine ssh"),
        ("--ssl-keyfile key.pem --ssl-certfile cert.pem", "does not exist"),
        ("--root-path https://lab.example/ddp", "--root-path is"),
    ],
)
def test_what_is_not_served_says_what_to_do(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        program.checked_options(program.parse_options(words.split()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--port 99999", "'99999' is not a port: use a whole number from 1 to 65535"),
        (
            "--port TAKEN",
            (
                "(Address already in use): the page may already be running. "
                "Otherwise use another port, such as --port "
            ),
        ),
        ("--port FREE --host nonsense.invalid --insecure", "--host needs an address of this machine"),
        ("--port FREE --runs-dir FILE", "FILE is not a folder"),
        ("--port FREE --auth-file FILE.none", "Name a file made by: python -m ddp_gui.accounts"),
        ("--port FREE --auth-file FILE", "cannot be read: "),
        ("--port FREE --auth-file LIST", "the file is not an accounts file"),
        ("--port FREE --auth-file NOBODY", "has no account, so no one could log in: python -m"),
        ("--port FREE --engine slurm --site FILE.none", "--site: the file"),
        ("--port FREE --data-dir FILE", "--data-dir: the folder"),
        ("--port FREE --insecure --proxy-from lab", "--proxy-from is 'lab'; allowed:"),
        ("--port FREE --ssl-certfile FILE --ssl-keyfile FILE", "pass a certificate and its private key"),
        ("--bogus", "unrecognized arguments: --bogus. python app.py --help lists the options"),
    ],
)
def test_what_keeps_the_page_from_being_served_is_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("FILE", "LIST", "NOBODY")}
    for name, content in (("FILE", "{"), ("LIST", "[]"), ("NOBODY", '{"format": 1, "accounts": {}}')):
        files[name].write_text(content)
        files[name].chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        places = files | {"TAKEN": taken.getsockname()[1], "FREE": free.getsockname()[1]}
        free.close()
        for name, place in places.items():
            words = re.sub(rf"\b{name}\b", str(place), words)
        given = words if "--runs-dir" in words else f"{words} --runs-dir {tmp_path / 'runs'}"
        monkeypatch.setattr("sys.argv", ["app.py", *given.split()])
        with pytest.raises(SystemExit) as ended:
            program.main()
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in printed and printed.count("\n") == 1 and "Traceback" not in printed


def test_an_engine_that_acts_in_one_name_takes_a_file_of_accounts_with_one(tmp_path: Path) -> None:
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    class_of.make(one, ANN)
    class_of.make(several)
    for engine in ("--engine slurm", "--engine ssh --site a.toml"):
        words = f"{engine} --host 0.0.0.0 --auth-file"
        found = program.checked_options(program.parse_options([*words.split(), str(one)]))
        assert found.has_login and found.num_accounts == 1
        with pytest.raises(ValueError, match="use --auth-file with only your account"):
            program.checked_options(program.parse_options([*words.split(), str(several)]))


async def passed_on(path: str, root_path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return the scope of a request behind the front, or the front's own response."""
    found: list[Any] = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope)

    async def send(message: Any) -> None:
        found.append(message)

    scope = {
        "type": "http",
        "path": path,
        "raw_path": path.encode(),
        "headers": headers,
        "query_string": b"a=b",
    }
    await Front(inside, root_path)(scope, None, send)
    return dict(found[0])


@pytest.mark.parametrize("path", ["/runs", "/ddp/runs"])
def test_a_proxy_may_take_the_prefix_away_or_leave_it(path: str) -> None:
    scope = asyncio.run(passed_on(path, "/ddp", []))
    assert (scope["path"], scope["raw_path"], scope["root_path"]) == ("/ddp/runs", b"/ddp/runs", "/ddp")
    answer = asyncio.run(passed_on("/ddp", options.root_path("//ddp//"), []))
    assert answer["status"] == 307 and dict(answer["headers"])[b"location"] == b"/ddp/?a=b", (
        "it gets its slash"
    )
    assert asyncio.run(passed_on("/ddpx", "/ddp", []))["path"] == "/ddp/ddpx"


def test_what_a_stranger_says_of_proxies_is_not_passed_on() -> None:
    names = (b"x-forwarded-host", b"X-Forwarded-Proto", b"forwarded", b"x-gradio-server", b"host")
    scope = asyncio.run(passed_on("/", "", [(name, b"evil") for name in names]))
    assert [name for name, _ in scope["headers"]] == [b"host"]


def test_only_tokens_of_known_cookies_are_passed_on() -> None:
    sent = b'a=b; session="x"; session=good-1._; session=second; other; =; session_device=d; s\xffx=1'
    headers = [(b"cookie", sent), (b"cookie", b"session=third")]
    found: list[Any] = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["headers"])

    scope = {"type": "http", "path": "/", "headers": headers}
    asyncio.run(Front(inside, "", ("session", "session_device"))(scope, None, None))
    assert found == [[(b"cookie", b"session=good-1._; session_device=d")]]


def test_an_open_stream_ends_with_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_routes, "POLL_EVERY_S", 0.01)
    login = Login(class_of.make(tmp_path / "accounts.json"), "session")
    sent: list[Any] = []
    asked: list[rights.Person] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        asked.append(rights.current_user())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def watch() -> None:
        token = await login.begin("ann", password_of(ANN), "10.0.0.1")
        headers = [(b"cookie", f"a=b; session={token}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/live/x", "headers": headers}
        serving = asyncio.create_task(SessionGate(endless, login)(scope, None, send))
        while not sent:
            await asyncio.sleep(0.01)
        login.end(token)
        await asyncio.wait_for(serving, 60)

    asyncio.run(watch())
    assert asked == [ANN]
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_who_has_opened_too_much_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_routes, "MAX_REQUESTS_PER_USER", 3)
    login = Login(class_of.make(tmp_path / "accounts.json"), "session")
    opened: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        opened.append(rights.current_user().name)
        await asyncio.Event().wait()

    async def ask() -> None:
        gate = SessionGate(endless, login)

        async def open_one(token: str, method: str = "GET") -> None:
            headers = [(b"cookie", f"session={token}".encode())]
            scope = {"type": "http", "method": method, "path": "/live/x", "headers": headers}
            await gate(scope, None, None)

        bob = await login.begin("bob", password_of(BOB), "10.0.0.1")
        ann = await login.begin("ann", password_of(ANN), "10.0.0.1")
        held = [asyncio.create_task(open_one(bob)) for _ in range(3)]
        await asyncio.sleep(0)
        for method in ("GET", "POST"):
            with pytest.raises(Refused, match="Too many requests at once from you"):
                await asyncio.wait_for(open_one(bob, method), 30)
        held.append(asyncio.create_task(open_one(ann)))
        while "ann" not in opened:
            await asyncio.sleep(0.01)
        closed = held.pop(0)
        closed.cancel()
        await asyncio.wait([closed])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(open_one(bob), 1.0)
        assert opened.count("bob") == 4
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_stream_ends_when_its_run_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHECK_AGAIN_AFTER_S", 0.0)
    shown, is_closed = [True, True, False], []

    async def endless() -> AsyncGenerator[bytes]:
        with contextlib.suppress(GeneratorExit):
            while True:
                yield b"news"
                await asyncio.sleep(0.001)
        is_closed.append(True)

    async def watch() -> list[bytes]:
        return [message async for message in stream.while_shown(endless(), lambda: shown.pop(0))]

    assert asyncio.run(watch()) == [b"news", b"news"]
    assert is_closed == [True]


@pytest.mark.parametrize(
    ("method", "path", "accepts", "expected"),
    [
        ("GET", "/no/such", "text/html,*/*", True),
        ("GET", "/no", "application/json", False),
        ("POST", "/no", "text/html", False),
        ("GET", "/live/no", "text/html", False),
    ],
)
def test_a_browser_gets_a_page_of_error(method: str, path: str, accepts: str, *, expected: bool) -> None:
    scope = {"type": "http", "method": method, "headers": [(b"accept", accepts.encode())]}
    assert asks_for_page(scope, path) is expected
