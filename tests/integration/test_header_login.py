"""A page behind a proxy that authenticates: the proxy's names work as accounts and cannot be forged."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from ddp_gui.auth import rights
from tests import other_user, prefix_proxy
from tests.harness import ANSWER_TIMEOUT_S
from tests.other_user import needs_a_second_user
from tests.unit.ddp_gui.runs.test_runs import make_run
from tools import page_driver

NAMES = {
    "secret-of-ann": "ann",
    "secret-of-bob": "Bob",
    "secret-of-eve": "eve",
    "secret-of-jane": "jane@uni.edu",
}
# Sends a request to a port and prints the response, even if it arrives before the request is complete. A
# shell script, because other users may not run this interpreter.
# Sent in one piece: bash's printf writes line by line, and the page refuses after the first one and closes.
ASK = (
    'trap "" PIPE; exec 3<>"/dev/tcp/127.0.0.1/$0"; '
    'printf %s "$1" | dd bs=64k count=1 iflag=fullblock status=none >&3; cat <&3'
)


@dataclass
class Page:
    """The page, the proxy in front of it, and a run of Ann's."""

    port: int
    proxy: str
    run_id: str

    def ask(
        self, person: str, path: str, values: list[Any] | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Send a request through the proxy as a known user; return status and JSON."""
        address = urlsplit(self.proxy)
        client = http.client.HTTPConnection(str(address.netloc), timeout=ANSWER_TIMEOUT_S)
        sent = {"X-Password": f"secret-of-{person}", "Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        body = None if values is None else json.dumps({"data": values})
        with contextlib.closing(client):
            client.request("GET" if body is None else "POST", f"{address.path}/{path}", body, sent)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())

    def request(self, *headers: str, path: str = "/live/me") -> str:
        """Return a raw HTTP request."""
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *headers, "Connection: close"]
        return "\r\n".join([*lines, "", ""])

    def tell(self, *headers: str, source: str = "127.0.0.1", path: str = "/live/me") -> str:
        """Send a request directly to the page, as its own user, which is allowed; return the raw response."""
        here = ("127.0.0.1", self.port)
        with socket.create_connection(here, ANSWER_TIMEOUT_S, source_address=(source, 0)) as sender:
            sender.sendall(self.request(*headers, path=path).encode("latin-1"))
            return b"".join(iter(lambda: sender.recv(65536), b"")).decode()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    runs_dir = tmp_path_factory.mktemp("header") / "runs"
    run = make_run(runs_dir)
    rights.note_owner(run, "ann")
    port = page_driver.free_port()
    command = [sys.executable, "app.py", "--no-browser", page_driver.NO_STANDBY, "--port", str(port)]
    command += ["--runs-dir", str(runs_dir), "--root-path", "/ddp", "--proxy-from", "127.0.0.1"]
    command += ["--auth-header", "X-Remote-User", "--teacher", "eve"]
    with (
        prefix_proxy.in_front_of(port, "/ddp", NAMES) as proxy,
        page_driver.serve_command(command, port),
    ):
        yield Page(port, proxy, run.run_id)


def test_the_proxys_names_are_people_with_roles(page: Page) -> None:
    for person, role in (("ann", "student"), ("bob", "student"), ("eve", "teacher")):
        who = {"has_login": True, "has_logout": False, "name": person, "role": role}
        assert page.ask(person, "live/me") == (200, who)


def test_whom_the_proxy_does_not_know_gets_nothing(page: Page) -> None:
    for path in ("", "runs", "live/me", "live/assets/js/main.js", "gradio_api/info", "login"):
        status, answer = page.ask("nobody", path)
        assert status == 401 and "did not send a name in the header X-Remote-User" in answer["detail"], path
    status, answer = page.ask("jane", "live/me")
    assert status == 403 and "should send the part before the @" in answer["detail"]


def test_what_a_client_says_of_itself_counts_for_nothing(page: Page) -> None:
    assert page.ask("bob", "live/me", X_Remote_User="eve")[1]["name"] == "bob"
    assert page.ask("nobody", "live/me", X_Remote_User="eve")[0] == 401
    forged = {"X_Forwarded_For": "127.0.0.1", "X_Forwarded_User": "eve"}
    assert page.ask("nobody", "live/me", **forged)[0] == 401
    # Only the proxy's address receives errors about the header.
    assert "did not send a name" in page.tell("X_Remote_User: eve")
    assert "exactly one name" in page.tell("X-Remote-User: bob", "X-Remote-User: eve")
    assert "exactly one name" in page.tell("X-Remote-User: bob,eve")
    assert "exactly one name" in page.tell("X-Remote-User: bob", "x-remote-user: eve")
    assert "non-ASCII characters" in page.tell("X-Remote-User: \xe9ve")
    assert "did not send a name" in page.tell("X-Remote-User: ")
    assert " 400 " in page.tell("X-Remote-User : eve").splitlines()[0]
    assert '"name":"eve"' in page.tell("X-Remote-User: eve")


def test_another_address_of_this_machine_is_not_the_proxy(page: Page) -> None:
    for forged in ("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1"):
        told = page.tell("X-Remote-User: eve", forged, source="127.0.0.2")
        assert told.startswith("HTTP/1.1 403") and "only through a proxy" in told
        assert "eve" not in told


@needs_a_second_user
def test_another_user_of_this_machine_is_not_the_proxy(page: Page) -> None:
    for path in ("/", "/live/me", f"/live/runs/{page.run_id}/summary"):
        told = other_user.told(
            "bash", "-c", ASK, str(page.port), page.request("X-Remote-User: eve", path=path)
        )
        assert told.startswith("HTTP/1.1 403") and "only through a proxy" in told
    assert '"name":"eve"' in page.tell("X-Remote-User: eve"), "the same request, from whoever may send it"
