"""A user name in a proxy's header is accepted only as exactly one plain name, and only from the proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import app as program
from ddp_gui.auth import rights
from ddp_gui.auth.login_routes import HeaderGate
from ddp_gui.auth.rights import Person
from ddp_gui.http.front import Refused

HEADER = "X-Remote-User"
NAME = HEADER.lower().encode()
TEACHERS = frozenset({"eve"})
PROXY = "--auth-header X-Remote-User --proxy-from 127.0.0.1"

Headers = list[tuple[bytes, bytes]]


async def seen(headers: Headers) -> tuple[Person, dict[str, Any], Headers]:
    """Return the user behind the gate, the scope there, and the headers of the response."""
    found: list[Any] = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        found.append((rights.current_user(), scope))
        html = [(b"content-type", b"text/html"), (b"cache-control", b"max-age=9")]
        await send({"type": "http.response.start", "status": 200, "headers": html})

    async def send(message: Any) -> None:
        found.append(message["headers"])

    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    await HeaderGate(inside, HEADER, TEACHERS)(scope, None, send)
    (person, scope), answered = found
    return person, scope, answered


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ([], 401, "did not send a name in the header X-Remote-User"),
        ([(NAME, b""), (NAME, b"")], 401, "did not send a name"),
        ([(b"x_remote_user", b"eve")], 401, "did not send a name"),
        ([(b"remote-user", b"eve"), (b"cookie", b"x-remote-user=eve")], 401, "did not send a name"),
        ([(NAME, b""), (NAME, b"eve")], 400, "exactly one name"),
        ([(NAME, b"ann"), (b"X-Remote-USER", b"eve")], 400, "exactly one name"),
        ([(NAME, b"ann,eve")], 400, "exactly one name"),
        ([(NAME, "änn".encode())], 400, "non-ASCII characters"),
        # Its lower-case form is the ASCII letter k.
        ([(NAME, "\u212aate".encode())], 400, "non-ASCII characters"),
        ([(NAME, b"eve\x00")], 400, "non-ASCII characters"),
        ([(NAME, b"jane@uni.edu")], 403, "should send the part before the @"),
        ([(NAME, b"..")], 403, "cannot be the name of an account"),
        ([(NAME, b"a" * 33)], 403, "cannot be the name of an account"),
    ],
)
def test_what_is_not_exactly_one_name_is_refused(headers: Headers, status: int, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        asyncio.run(seen(headers))
    assert refused.value.status == status


def test_the_names_options() -> None:
    words = f"{PROXY},10.0.0.7 --teacher Eve --teacher max --host 0.0.0.0"
    options = program.checked_options(program.parse_options(words.split()))
    assert options.has_login and not options.is_one_users
    assert options.teachers == {"eve", "max"}
    assert options.handed_out_cpu_ranks is not None, "as with accounts"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--auth-header X-Remote-User", "needs --proxy-from with only the proxy's addresses"),
        ("--auth-header X-Remote-User --proxy-from 127.0.0.1,*", "no \\*, no network, no name"),
        ("--auth-header X-Remote-User --proxy-from 10.0.0.0/8", "no \\*, no network, no name"),
        ("--auth-header X-Remote-User --proxy-from 0.0.0.0", "no \\*, no network, no name"),
        ("--auth-header X-Remote-User --proxy-from 127.0.0.1,", "no \\*, no network, no name"),
        (f"{PROXY} --auth-file accounts.json", "remove --auth-file and --insecure"),
        (f"{PROXY} --insecure", "remove --auth-file and --insecure"),
        (f"{PROXY} --engine slurm", "as the user who started the page"),
        (f"{PROXY} --engine ssh --site a.toml", "the SSH keys of the user who started the page"),
        (f"{PROXY} --teacher jane@uni.edu", "cannot be the name of an account"),
        ("--teacher eve", "--teacher requires --auth-header"),
        *(
            (f"--auth-header {header} --proxy-from 127.0.0.1", "a header that only your proxy sets")
            for header in ("Cookie", "X_Remote_User", "X-Forwarded-User", "X-", "X-Ä")
        ),
    ],
)
def test_a_header_without_a_proxy_to_believe_is_refused_in_words(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        program.checked_options(program.parse_options(words.split()))
