"""A page of another site in the same browser can neither change nor read anything here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.ui.attacks.attacking import ask
from tests.ui.conftest import NewPage
from tools.page_driver import Server


class EvilPage(BaseHTTPRequestHandler):
    """An empty page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def evil() -> Iterator[str]:
    served = ThreadingHTTPServer(("127.0.0.1", 0), EvilPage)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_address[1]}/"
    served.shutdown()


@pytest.fixture
def page(new_page: NewPage, evil: str) -> Page:
    return new_page(evil)


START = """async ([target, type, mode]) => {
  const config = { dataset: "digits", model: "mlp", device: "cpu", name: "evil" };
  const body = JSON.stringify({ data: [config, false] });
  try {
    const asked = { method: "POST", mode, body, headers: { "content-type": type } };
    const answer = await fetch(`${target}/gradio_api/run/start_run`, asked);
    return [answer.type, await answer.text()];
  } catch (error) { return ["refused", String(error)]; }
}"""
READ = """async ([target, path]) => {
  try { return await (await fetch(target + path)).text(); } catch { return "refused"; }
}"""
STREAM = """(target) => new Promise((done) => {
  const source = new EventSource(`${target}/live/runs/none/stream`);
  source.onopen = () => done("open");
  source.onerror = () => done("refused");
})"""
LOAD = """([tag, address]) => new Promise((done) => {
  const element = document.createElement(tag);
  element.onload = () => done("loaded");
  element.onerror = () => done("refused");
  element.src = address;
  document.body.append(element);
})"""
SOCKET = """(target) => new Promise((done) => {
  const socket = new WebSocket(target.replace("http", "ws") + "/gradio_api/queue/join");
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})"""
FRAME = """(address) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = done;
  frame.src = address;
  document.body.append(frame);
})"""
FORM = """([target, type]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", action: `${target}/gradio_api/run/start_run`, enctype: type });
  const field = document.createElement("input");
  Object.assign(field, { name: '{"data":[{"device":"cpu","name":"evil","x":"', value: '"},false]}' });
  form.append(field);
  document.body.append(form);
  form.submit();
}"""


def assert_no_run(server: Server) -> None:
    assert "evil" not in ask(server, "GET", "/live/runs")[1]


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "application/x-www-form-urlencoded"]
)
def test_a_fetch_starts_nothing(server: Server, page: Page, content_type: str, mode: str) -> None:
    kind, words = page.evaluate(START, [server.address, content_type, mode])
    assert kind in ("refused", "opaque")
    assert "run_id" not in words
    assert_no_run(server)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"]
)
def test_a_form_starts_nothing(server: Server, page: Page, content_type: str) -> None:
    with page.expect_navigation(url=f"{server.address}/**") as navigated:
        page.evaluate(FORM, [server.address, content_type])
    assert navigated.value is not None
    assert navigated.value.status == 403
    assert_no_run(server)


def test_nothing_is_read_loaded_or_reached(server: Server, page: Page) -> None:
    for path in ("/live/runs", "/config", "/", "/live/machine", "/gradio_api/info"):
        assert page.evaluate(READ, [server.address, path]) == "refused"
    assert page.evaluate(STREAM, server.address) == "refused"
    assert page.evaluate(SOCKET, server.address) == "refused"
    for tag, path in (
        ("img", "/live/assets/icons/favicon.svg"),
        ("script", "/live/assets/js/first.js"),
        ("script", "/live/runs"),
    ):
        assert page.evaluate(LOAD, [tag, server.address + path]) == "refused"
    # A frame also fires "load" for an error, so check that the page is not in it.
    page.evaluate(FRAME, f"{server.address}/runs")
    assert not any(frame.locator("#ddp-runs").count() for frame in page.frames)
    with page.context.expect_page() as opened:
        page.evaluate("(address) => { window.opened = window.open(address); }", f"{server.address}/runs")
    opened.value.locator("#ddp-runs h1").first.wait_for()
    assert opened.value.evaluate("() => window.opener") is None
    assert page.evaluate("() => window.opened.closed")
