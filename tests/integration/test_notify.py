"""A real run notifies a real server that it has ended."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.harness import Launcher, LiveRun
from trainers.engines.local import notify

TOKEN = "s3cret-path"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("apprise") is None,
    reason="apprise is not installed: pip install -r requirements-notify.txt",
)


class Listener(ThreadingHTTPServer):
    """Record all requests; respond with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.heard: list[dict[str, Any]] = []
        self.status = 200

    @property
    def address(self) -> str:
        return f"json://127.0.0.1:{self.server_address[1]}/{TOKEN}"


class Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append({"path": self.path, **body})
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Disable request logging."""


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    server = Listener()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(notify.VARIABLE, server.address)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def nowhere_in(live: LiveRun, secret: str) -> bool:
    files = [path for path in live.run.path.parent.rglob("*") if path.is_file() and path.suffix != ".pt"]
    return not any(secret.encode() in path.read_bytes() for path in files)


def test_a_run_that_ends_by_itself_is_told_and_one_that_is_stopped_is_not(
    launcher: Launcher, listener: Listener
) -> None:
    live = launcher.start(max_steps=20, name="night run")
    live.pause_at_start()
    assert notify.VARIABLE not in live.rank(0).environ(), "tokens are none of the ranks' business"
    live.ask("resume")
    live.finish()
    (heard,) = listener.heard
    accuracy = live.events("eval")[-1]["metrics"]["accuracy"]
    expected = f"night run finished: All 20 steps done. Best accuracy: {accuracy:.4g} at step 20."
    assert heard["message"] == expected and heard["path"] == f"/{TOKEN}"
    assert live.events("warning") == [] and nowhere_in(live, TOKEN)

    stopped = launcher.start(num_epochs=100_000)
    stopped.wait_for("step")
    stopped.ask("stop", save=False)
    assert stopped.wait_for_end().state == "stopped"
    assert len(listener.heard) == 1


def test_a_failed_run_is_told_and_a_service_that_refuses_is_one_warning(
    launcher: Launcher, listener: Listener
) -> None:
    listener.status = 500
    live = launcher.start(model="no_such_model")
    assert live.wait_for_end().state == "failed"
    assert "failed: " in listener.heard[0]["message"] and "no_such_model" in listener.heard[0]["message"]
    (warning,) = live.events("warning")
    assert warning["code"] == "notify_failed" and "did not accept the message" in warning["message"]
    assert live.states()[-1] == "failed" and nowhere_in(live, TOKEN)
