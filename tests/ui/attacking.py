"""What the attacks share: a request exactly as given, and a secret that must not come back."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tools.page_driver import Server

SECRET = "the secret of this machine"
NOT_SERVED = {400, 403, 404, 405, 411, 413, 422}
JSON = {"Content-Type": "application/json"}


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Send one request exactly as given and return the status and the text of the answer."""
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=30)
    try:
        sent = json.dumps(body).encode() if isinstance(body, dict | list) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=sent, headers=(JSON if sent is not None else {}) | named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", errors="replace")
    finally:
        connection.close()
