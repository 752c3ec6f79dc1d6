"""Defines which of Gradio's routes are open, and to which users."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio import processing_utils, utils
from gradio.blocks import Block
from gradio.components.api_component import Api
from gradio.route_utils import GradioMultiPartParser
from gradio.state_holder import SessionState
from gradio_client.utils import strip_invalid_filename_characters
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Mount

from ddp_gui.background import loop_delay
from ddp_gui.gradio_routes import callers
from ddp_gui.gradio_routes import uploads as uploads_module
from ddp_gui.gradio_routes.sent_values import Functions, read_checked_body
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.http import front, shell
from ddp_gui.http.front import (
    FORWARDED_KEY,
    MAX_BODY_BYTES,
    MAX_PATH_LENGTH,
    NO_HOST,
    AllowedHosts,
    App,
    Message,
    Receive,
    Refused,
    RequestCounter,
    Scope,
    Send,
    check_body,
    check_headers,
    drop_body,
    network_of,
    send_refusal,
)
from ddp_gui.http.own_proxy import ORIGINS_KEY, OwnProxy

_MAX_PATH, _MAX_NAME = 1000, 200
_NAME = r"[A-Za-z0-9_]+"
_READ_PATHS = re.compile(
    r"/|/config/?|/theme\.css|/robots\.txt|/favicon\.ico"
    r"|/assets/[\w.-]+|/static/(js|img|fonts|css)/[\w./-]+"
    r"|/gradio_api/(info/?|queue/data|startup-events|app_id/?|heartbeat/\w+|theme\.css)"
    rf"|/gradio_api/call/{_NAME}/\w+",
    re.ASCII,
)
_WRITE_PATHS = re.compile(
    rf"/gradio_api/(queue/join/?|upload/?|cancel/?|reset/?|(run|api|call)/{_NAME}/?)", re.ASCII
)
_RESULT_PATH = re.compile(rf"/gradio_api/call/{_NAME}/(\w+)", re.ASCII)
_CALL_PATH = re.compile(rf"/gradio_api/(?:run|api|call)/({_NAME})/?")
# The manifest is for installable apps, which this page is not; browsers would request it without a proxy's
# prefix.
_MANIFEST = re.compile(rb'\s*<link rel="manifest"[^>]*>')
_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
UPLOAD = "/gradio_api/upload"


def protect_routes(app: FastAPI, demo: gr.Blocks, uploads: Uploads) -> None:
    """Put the allowlist in front of the Gradio app that is mounted below an app's routes."""
    mount = next(route for route in app.routes if isinstance(route, Mount) and route.path == "")
    mount.app = _Allowlist(mount.app, demo, uploads)


def route_path(scope: Scope) -> str:
    """Return a request's path without the prefix of a reverse proxy."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def is_open(method: str, path: str) -> bool:
    """Return True if Gradio may answer this request."""
    pattern = {"GET": _READ_PATHS, "HEAD": _READ_PATHS, "POST": _WRITE_PATHS}.get(method)
    # Valid file names: without two successive dots, and within a file system's limits. Other names cause
    # internal errors.
    is_valid_name = ".." not in path and len(path) < _MAX_PATH and max(map(len, path.split("/"))) < _MAX_NAME
    return pattern is not None and is_valid_name and bool(pattern.fullmatch(path))


class _Allowlist:
    """ASGI middleware around Gradio's app."""

    def __init__(self, gradio: App, demo: gr.Blocks, uploads: Uploads) -> None:
        self._gradio = gradio
        self._demo = demo
        # Exclude functions that run only in the browser.
        server_functions = {number: function for number, function in demo.fns.items() if function.fn}
        self._names = {number: function.api_name for number, function in server_functions.items()}
        self._inputs = {number: function.inputs for number, function in server_functions.items()}
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._gradio(scope, receive, send)
            return
        path = route_path(scope)
        try:
            if not is_open(scope["method"], path):
                if front.asks_for_page(scope, path):
                    await shell.not_found_page(path)(scope, receive, send)
                    return
                raise Refused(404, "Not found.")
            if path.rstrip("/") == UPLOAD:
                await take_upload(self._uploads, scope, receive, send)
                return
            queue = self._demo._queue  # noqa: SLF001 - no setting of Gradio limits it
            if scope["method"] == "POST":
                match = _CALL_PATH.fullmatch(path)
                functions = Functions(
                    names=self._names,
                    called=match[1] if match else None,
                    inputs=self._inputs,
                    answers_later=path.startswith("/gradio_api/call/"),
                )
                incoming = self._uploads.user_incoming_folder()
                receive = await read_checked_body(receive, incoming, functions, queue, scope)
                callers.forget_oldest(queue, self._demo.state_holder)
            elif fetched := _RESULT_PATH.fullmatch(path):
                callers.refuse_foreign_call(queue, fetched[1])
            else:
                scope = callers.rewrite_to_own_session(scope, path)
        except Refused as refused:
            await send_refusal(send, refused)
            return
        if path == "/":
            scope[loop_delay.FUNCTION] = ""
            await _serve_page(self._gradio, scope, receive, send)
        else:
            await self._gradio(scope, receive, send)


async def _serve_page(gradio: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve Gradio's page with a policy that allows, by hash, only its own inline scripts."""
    takes_gzip = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
    plain_headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    start_message: Message = {}
    chunks: list[bytes] = []

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            start_message.update(message)
        else:
            chunks.append(message.get("body", b""))

    await gradio({**scope, "headers": plain_headers}, receive, collect)
    body = _MANIFEST.sub(b"", b"".join(chunks))
    headers = [(name, value) for name, value in start_message["headers"] if name.lower() != b"content-length"]
    headers.append((front.POLICY_HEADER, _policy(body).encode()))
    if takes_gzip and scope["method"] == "GET":
        body = _gzip(body)
        headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": start_message["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})


# The page depends only on the host name of the request.
@functools.lru_cache(maxsize=8)
def _policy(body: bytes) -> str:
    return front.gradio_page_policy(_INLINE_SCRIPT.findall(body.decode("utf-8", errors="replace")))


@functools.lru_cache(maxsize=8)
def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6)


_original_init = SessionState.__init__
_move_files = processing_utils.async_move_files_to_cache
_add_root_url = processing_utils.add_root_url


class _List(list[Any]):
    """A list of a named endpoint, which contains no files, so that Gradio need not search it."""


class _Object(dict[str, Any]):
    """An object of a named endpoint, which contains no files, so that Gradio need not search it."""


def _init_without_copy(self: SessionState, blocks: Any) -> None:
    # Skip the copy of the components' settings: only deep links need it, and they are disabled. Settings that
    # a handler changes are added later.
    _original_init(self, SimpleNamespace(default_config=blocks.default_config, blocks={}))  # type: ignore[arg-type]


async def _move_files_unless_plain(data: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
    # Values of named endpoints contain no files.
    if not isinstance(block, Api):
        return await _move_files(data, block, *args, **kwargs)
    return _List(data) if isinstance(data, list) else _Object(data) if isinstance(data, dict) else data


def _add_root_url_unless_plain(data: Any, root_url: str, previous_root_url: str | None) -> Any:
    if isinstance(data, list) and data and all(isinstance(value, _List | _Object) for value in data):
        return data
    return _add_root_url(data, root_url, previous_root_url)


def _all_subclasses(base: type[Block]) -> Iterator[type[Block]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _all_subclasses(subclass)


def shorten_session_starts() -> None:
    """Make Gradio's session starts and calls faster.

    A session starts without a copy of the page's description, a call does not search for matplotlib, and
    values of named endpoints are not searched for files. The signature of each component is cached, because
    Gradio computes it 240 times to fill in the form, which takes 20 ms.
    """
    for kind in _all_subclasses(Block):
        kind.__init__.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined]
    processing_utils.async_move_files_to_cache = _move_files_unless_plain
    processing_utils.add_root_url = _add_root_url_unless_plain
    SessionState.__init__ = _init_without_copy  # type: ignore[method-assign]
    utils.MatplotlibBackendMananger = contextlib.nullcontext  # type: ignore[misc, assignment]


FORM_BYTES = 100_000  # overhead of the form around the file
CROSS_SITE_TEXT = (
    "Requests from another site are refused. If a proxy serves this page over https, the proxy must send "
    "X-Forwarded-Proto, and the page needs the option --proxy-from with the proxy's address."
)


class Gate:
    """ASGI middleware: refuses foreign hosts and origins, enforces limits, adds the security headers."""

    def __init__(
        self, app: App, host: str, allowed: Sequence[str] = (), own_proxy: OwnProxy | None = None
    ) -> None:
        self._app = app
        self._frames = () if own_proxy is None else own_proxy.frames
        # Names given by `--host` and `--allow-host`: a proxy may use them, so their pages are ours, too.
        self._host_options = list(allowed)
        self._allowed = {name.lower() for name in allowed}
        self._hosts = AllowedHosts([host, *allowed])
        self._requests = RequestCounter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "websocket":
            # Refuse WebSockets: this page does not use them, and browsers open them across sites.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        loop_delay.begin_request(scope)
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = front.merge_policies(message.get("headers", []), self._frames)
            await send(message)

        try:
            self._check_request(scope)
            with self._requests.admit(network_of((scope.get("client") or ("",))[0])):
                await self._app(scope, receive, send_with_headers)
        except Refused as refused:
            await drop_body(scope, receive)
            await send_refusal(send_with_headers, refused)
        finally:
            # Answer internal errors here, because uvicorn's answer would lack the security headers.
            if not has_started:
                await send_refusal(send_with_headers, Refused(500, "Internal error of the server."))

    def _check_request(self, scope: Scope) -> None:
        check_headers(scope)
        hosts = self._host_headers(scope)
        # Only the user's own proxy knows the name by which the user reaches it.
        accepts = front.is_host if ORIGINS_KEY in scope else self._hosts.accepts
        if len(hosts) != 1 or not accepts(hosts[0]):
            raise Refused(
                403,
                "This server does not serve this host name. Use the machine's IP address instead, or start "
                "the page with --allow-host NAME. A proxy must pass on the browser's Host header.",
            )
        if not scope["path"].startswith("/"):
            raise Refused(400, "A path must begin with a slash.")
        if len(scope["path"]) > MAX_PATH_LENGTH:
            raise Refused(
                414, f"The path of the URL is too long; allowed: at most {MAX_PATH_LENGTH:,} characters."
            )
        if _is_cross_site(scope, {hosts[0].lower(), *self._allowed}, is_framed=bool(self._frames)):
            raise Refused(403, CROSS_SITE_TEXT)
        if hosts[0] in _own_addresses(scope) and scope.get(FORWARDED_KEY) and route_path(scope) == "/":
            # Without a valid Host, Gradio's page stays empty: it requests all files from that host.
            raise Refused(
                400,
                f"{NO_HOST} Or start the page with --allow-host NAME, with the host name in the "
                "browser's URL.",
            )
        is_upload = scope["path"].rstrip("/").endswith(UPLOAD)
        check_body(scope, uploads_module.MAX_BYTES + FORM_BYTES if is_upload else MAX_BODY_BYTES)

    def _host_headers(self, scope: Scope) -> list[str]:
        """Return the Host values, or the first name of `--allow-host` if a proxy has replaced Host."""
        hosts = _header_values(scope, b"host")
        # Never replace other names, which a page of another site could send (DNS rebinding).
        is_replaced = not hosts or (len(hosts) == 1 and hosts[0] in _own_addresses(scope))
        if not (is_replaced and scope.get(FORWARDED_KEY) and self._host_options):
            return hosts
        other_headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [(b"host", self._host_options[0].encode("latin-1")), *other_headers]
        return [self._host_options[0]]


def _own_addresses(scope: Scope) -> set[str]:
    """Return the names by which a proxy itself addresses this server; browsers do not use them."""
    host, port = scope.get("server") or ("", None)
    return {f"{name}:{port}" for name in (host, f"[{host}]", "localhost", "127.0.0.1")}


def _is_cross_site(scope: Scope, own_hosts: Collection[str], *, is_framed: bool = False) -> bool:
    """Return True if the request comes from another site's page; a top-level navigation is allowed.

    Args:
        is_framed: True to allow navigation in a frame, too; the page's policy restricts the containing pages.
    """
    # http and https with the same name are different origins.
    scheme = scope.get("scheme", "http")
    origins = scope.get(ORIGINS_KEY) or {f"{scheme}://{name}" for name in own_hosts}
    if any(origin.lower() not in origins for origin in _header_values(scope, b"origin")):
        return True
    # Browsers send Fetch Metadata only to trustworthy origins, which are TLS and this machine itself.
    site = _header_values(scope, b"sec-fetch-site")
    if not set(site) & {"cross-site", "same-site"}:
        return False
    is_link = _header_values(scope, b"sec-fetch-mode") == ["navigate"] and scope["method"] in ("GET", "HEAD")
    targets = (["document"], [], ["iframe"]) if is_framed else (["document"], [])
    return not (is_link and _header_values(scope, b"sec-fetch-dest") in targets)


def _header_values(scope: Scope, header_name: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header_name]


NOT_A_FORM = "An upload must be one file, sent as a form."


async def take_upload(uploads: Uploads, scope: Scope, receive: Receive, send: Send) -> None:
    """Store one file in a new folder, and answer like Gradio with a list that contains its path.

    Raises:
        Refused: if the space is insufficient, or the request is not a form with one file.
    """
    request = Request(scope, receive)
    # The header exists, because earlier checks reject a body without a length.
    size_bytes = int(request.headers["content-length"])
    with ExitStack() as stack:
        try:
            folder = await asyncio.to_thread(stack.enter_context, uploads.make_upload_folder(size_bytes))
        except uploads_module.NoRoomError as error:
            raise Refused(507, f"The server currently has no space for this file: {error}.") from error
        try:
            path = await _write(request, folder)
        except ClientDisconnect as error:
            raise Refused(400, "The upload was interrupted.") from error
        # ValueError is also the parser's error for an invalid boundary.
        except (MultiPartException, ValueError) as error:
            raise Refused(400, NOT_A_FORM) from error
        await JSONResponse([str(path)])(scope, receive, send)


async def _write(request: Request, folder: Path) -> Path:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ValueError(NOT_A_FORM)
    # Refuse fields that are not files, because they are kept in memory at any length.
    parser = GradioMultiPartParser(
        request.headers,
        request.stream(),
        max_files=1,
        max_fields=0,
        upload_dir=folder,
        max_file_size=uploads_module.MAX_BYTES,
    )
    file = (await parser.parse()).get("files")
    if not isinstance(file, UploadFile):
        raise ValueError(NOT_A_FORM)
    await file.close()
    name = strip_invalid_filename_characters(Path(file.filename or "").name).lstrip(".")
    (stored,) = folder.iterdir()
    return stored.rename(folder / (name or "upload"))
