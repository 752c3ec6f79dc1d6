"""Closes Gradio's routes to all but what the page and `gradio_client` use.

Gradio brings some sixty routes: files of the disk, a proxy to other hosts, functions of components, editors.
Past advisories were about most of them. What is not named here is answered as if it were not there.
"""

from __future__ import annotations

import functools
import gzip
import re
from pathlib import Path

from fastapi import FastAPI
from starlette.routing import Mount

from ddp_gui import uploads
from ddp_gui.door import policies
from ddp_gui.door.asgi import App, Message, Receive, Refused, Scope, Send, answer
from ddp_gui.door.sent_values import checked_body

_NAME = r"[A-Za-z0-9_]+"
_READ = re.compile(
    r"/|/config/?|/theme\.css|/robots\.txt|/favicon\.ico"
    r"|/assets/[\w.-]+|/static/(js|img|fonts|css)/[\w./-]+"
    r"|/gradio_api/(info/?|queue/data|upload_progress|startup-events|heartbeat/\w+|theme\.css)"
    rf"|/gradio_api/call/{_NAME}/\w+",
    re.ASCII,
)
_WRITE = re.compile(
    rf"/gradio_api/(queue/join/?|upload/?|cancel/?|reset/?|(run|api|call)/{_NAME}/?)", re.ASCII
)
_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
UPLOAD = "/gradio_api/upload"


def close(app: FastAPI, incoming: Path) -> None:
    """Put the door between an app and the Gradio app that is mounted below its routes.

    Args:
        incoming: the folder in which uploads arrive.
    """
    mount = next(route for route in app.routes if isinstance(route, Mount) and route.path == "")
    mount.app = _Door(mount.app, incoming.resolve())


def route_path(scope: Scope) -> str:
    """Return a request's path below the prefix a reverse proxy may put in front of it."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def is_open(method: str, path: str) -> bool:
    """Tell whether Gradio may answer this."""
    wanted = {"GET": _READ, "HEAD": _READ, "POST": _WRITE}.get(method)
    # Two dots are no part of any name there is.
    return wanted is not None and ".." not in path and bool(wanted.fullmatch(path))


class _Door:
    """ASGI middleware around Gradio's app."""

    def __init__(self, gradio: App, incoming: Path) -> None:
        self._gradio = gradio
        self._incoming = incoming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._gradio(scope, receive, send)
            return
        try:
            receive = await self._checked(scope, receive)
        except Refused as refused:
            await answer(send, refused)
            return
        if route_path(scope) == "/":
            await _serve_page(self._gradio, scope, receive, send)
        else:
            await self._gradio(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        path = route_path(scope)
        if not is_open(scope["method"], path):
            raise Refused(404, "There is nothing here.")
        if path.rstrip("/") == UPLOAD:
            if not uploads.has_room(self._incoming, _length(scope)):
                raise Refused(507, "There is no room for this file on the server now.")
        elif scope["method"] == "POST":
            return await checked_body(receive, self._incoming)
        return receive


def _length(scope: Scope) -> int:
    """Return how long a body is; the gate lets none in that does not say so."""
    return int(dict(scope["headers"]).get(b"content-length", 0))


async def _serve_page(gradio: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve Gradio's page with a policy that names each of its inline scripts, so that no other runs."""
    takes_gzip = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
    plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    begun: Message = {}
    pieces: list[bytes] = []

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            begun.update(message)
        else:
            pieces.append(message.get("body", b""))

    await gradio({**scope, "headers": plain}, receive, collect)
    body = b"".join(pieces)
    headers = [(name, value) for name, value in begun["headers"] if name.lower() != b"content-length"]
    headers.append((policies.POLICY_HEADER, _policy(body).encode()))
    if takes_gzip and scope["method"] == "GET":
        body = _compressed(body)
        headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": begun["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})


# The page differs only by the name it was asked for.
@functools.lru_cache(maxsize=8)
def _policy(body: bytes) -> str:
    return policies.gradio_page(_INLINE_SCRIPT.findall(body.decode("utf-8", errors="replace")))


@functools.lru_cache(maxsize=8)
def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6)
