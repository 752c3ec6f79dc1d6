"""Helpers of the attacks: raw requests, foreign addresses, and a secret file content."""

from __future__ import annotations

import http.client
import json
from typing import Any

from playwright.sync_api import Page

from tests.hostile_words import SEEN_NOWHERE
from tools.page_driver import Server

SECRET = "the secret of this machine"
NOT_SERVED = {400, 403, 404, 405, 411, 413, 414, 422}
JSON = {"Content-Type": "application/json"}
# Evaluated in a page: all text that is shown or read by a screen reader.
TEXTS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [document.title];
  while (walker.nextNode()) texts.push(walker.currentNode.data);
  const read = [...document.querySelectorAll("[title], [aria-label]")];
  return [...texts, ...read.flatMap((node) => [String(node.title ?? ""), node.ariaLabel ?? ""])];
}"""
STRANGERS = (
    "[onerror], img[src=x], a[href^='javascript:' i], a[href*='evil'], iframe, object, embed, body b > script"
)
# Addresses that would take a browser away from the page.
ELSEWHERE = (
    "//evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "https:evil.example",
    "https://evil.example/",
    "\t//evil.example",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "../evil",
    "run/%2e%2e/../../evil",
    ".%2E/evil",
)


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Send one request exactly as given; return the status and the text of the response."""
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=180)
    try:
        sent = json.dumps(body).encode() if isinstance(body, dict | list) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=sent, headers=(JSON if sent is not None else {}) | named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", errors="replace")
    finally:
        connection.close()


def assert_only_text(page: Page) -> None:
    """Check that a page shows hostile text only as text, without active elements or invisible characters."""
    assert page.locator(STRANGERS).count() == 0
    for text in page.evaluate(TEXTS):
        assert SEEN_NOWHERE.search(text) is None, ascii(text)
