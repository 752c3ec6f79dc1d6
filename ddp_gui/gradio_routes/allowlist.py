"""Closes all of Gradio's routes except those that the page and `gradio_client` use.

Gradio brings some sixty routes: files of the disk, a proxy to other hosts, functions of components, editors.
Past advisories were about most of them. Any route that is not listed here gets a 404.
"""

from __future__ import annotations

import functools
import gzip
import re

import gradio as gr
from fastapi import FastAPI
from starlette.routing import Mount

from ddp_gui.background import loop_delay
from ddp_gui.gradio_routes import sessions, upload
from ddp_gui.gradio_routes.sent_values import Functions, checked_body
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.http import policies
from ddp_gui.http.asgi import App, Message, Receive, Refused, Scope, Send, answer

_MAX_PATH, _MAX_NAME = 1000, 200
_NAME = r"[A-Za-z0-9_]+"
_READ = re.compile(
    r"/|/config/?|/theme\.css|/robots\.txt|/favicon\.ico"
    r"|/assets/[\w.-]+|/static/(js|img|fonts|css)/[\w./-]+"
    r"|/gradio_api/(info/?|queue/data|startup-events|app_id/?|heartbeat/\w+|theme\.css)"
    rf"|/gradio_api/call/{_NAME}/\w+",
    re.ASCII,
)
_WRITE = re.compile(
    rf"/gradio_api/(queue/join/?|upload/?|cancel/?|reset/?|(run|api|call)/{_NAME}/?)", re.ASCII
)
_FETCHED = re.compile(rf"/gradio_api/call/{_NAME}/(\w+)", re.ASCII)
_CALLED = re.compile(rf"/gradio_api/(?:run|api|call)/({_NAME})/?")
# Of an app to install, which this page is not; it would be asked for without the prefix of a proxy.
_MANIFEST = re.compile(rb'\s*<link rel="manifest"[^>]*>')
_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
UPLOAD = "/gradio_api/upload"


def close(app: FastAPI, demo: gr.Blocks, uploads: Uploads) -> None:
    """Put the allowlist in front of the Gradio app that is mounted below an app's routes."""
    mount = next(route for route in app.routes if isinstance(route, Mount) and route.path == "")
    mount.app = _Allowlist(mount.app, demo, uploads)


def route_path(scope: Scope) -> str:
    """Return a request's path below the prefix a reverse proxy may put in front of it."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def is_open(method: str, path: str) -> bool:
    """Tell whether Gradio may answer this."""
    wanted = {"GET": _READ, "HEAD": _READ, "POST": _WRITE}.get(method)
    # No valid name contains two dots, or is longer than a file system allows: that would be an error of ours.
    is_name = ".." not in path and len(path) < _MAX_PATH and max(map(len, path.split("/"))) < _MAX_NAME
    return wanted is not None and is_name and bool(wanted.fullmatch(path))


class _Allowlist:
    """ASGI middleware around Gradio's app."""

    def __init__(self, gradio: App, demo: gr.Blocks, uploads: Uploads) -> None:
        self._gradio = gradio
        self._demo = demo
        # What only runs in the browser has no function here.
        here = {number: function for number, function in demo.fns.items() if function.fn}
        self._names = {number: function.api_name for number, function in here.items()}
        self._inputs = {number: function.inputs for number, function in here.items()}
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._gradio(scope, receive, send)
            return
        path = route_path(scope)
        try:
            if not is_open(scope["method"], path):
                raise Refused(404, "There is nothing here.")
            if path.rstrip("/") == UPLOAD:
                await upload.take(self._uploads, scope, receive, send)
                return
            queue = self._demo._queue  # noqa: SLF001 - no setting of Gradio's bounds it
            if scope["method"] == "POST":
                called = _CALLED.fullmatch(path)
                functions = Functions(
                    names=self._names,
                    called=called[1] if called else None,
                    inputs=self._inputs,
                    answers_later=path.startswith("/gradio_api/call/"),
                )
                incoming = self._uploads.incoming_of_sender()
                receive = await checked_body(receive, incoming, functions, queue, scope)
                sessions.forget_oldest(queue, self._demo.state_holder)
            elif fetched := _FETCHED.fullmatch(path):
                sessions.refuse_others(queue, fetched[1])
            else:
                scope = sessions.own_address(scope, path)
        except Refused as refused:
            await answer(send, refused)
            return
        if path == "/":
            scope[loop_delay.FUNCTION] = ""
            await _serve_page(self._gradio, scope, receive, send)
        else:
            await self._gradio(scope, receive, send)


async def _serve_page(gradio: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve Gradio's page with a policy that allows each of its inline scripts by hash, and no others."""
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
    body = _MANIFEST.sub(b"", b"".join(pieces))
    headers = [(name, value) for name, value in begun["headers"] if name.lower() != b"content-length"]
    headers.append((policies.POLICY_HEADER, _policy(body).encode()))
    if takes_gzip and scope["method"] == "GET":
        body = _compressed(body)
        headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": begun["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})


# The page depends only on the host name of the request.
@functools.lru_cache(maxsize=8)
def _policy(body: bytes) -> str:
    return policies.gradio_page(_INLINE_SCRIPT.findall(body.decode("utf-8", errors="replace")))


@functools.lru_cache(maxsize=8)
def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6)
