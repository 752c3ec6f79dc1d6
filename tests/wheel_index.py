"""A package index of tiny wheels, served over HTTP: PyTorch's folders by build, and one like PyPI's."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from platform import machine

PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
# Large enough to be cut in two; random bytes do not compress.
FILLING_BYTES = 300_000


def make_wheel(name: str, version: str, tags: str = "py3-none-any", *, filling: int = 0) -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel with one module; torch's version includes the build."""
    info = f"{name}-{version}.dist-info"
    public, _, build = version.partition("+")
    # PyPI's wheel is the build for CUDA 13.0; its file name does not contain it.
    local = build or "cu130"
    module = f"__version__ = '{public}+{local}'\n"
    files: dict[str, bytes] = {
        f"{name}/__init__.py": b"",
        f"{name}/version.py": module.encode(),
        f"{name}/filling": hashlib.shake_128(version.encode()).digest(filling),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n".encode(),
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return f"{name}-{version}-{tags}.whl", content.getvalue()


@dataclass
class Index:
    """Responses of a server, which tests change while it runs.

    Attributes:
        files: Content of each path.
        pages: Links of each folder.
        refused: Error status by path prefix.
        hanging: Path prefixes that get no response before `close`.
        cut_after: Number of bytes by path after which the connection breaks. Applies once.
        stalls_after: Same, but the connection stays open without sending more.
        has_ranges: False if range requests are answered with the complete file.
        asked: All requests: method, path, and Range header.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    hanging: list[str] = field(default_factory=list)
    cut_after: dict[str, int] = field(default_factory=dict)
    stalls_after: dict[str, int] = field(default_factory=dict)
    has_ranges: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""
    is_stalled: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def add(self, folder: str, name: str, content: bytes) -> str:
        """Add a file to a folder, linked with its SHA-256; return its path."""
        path = f"{folder}{name.replace('+', '%2B')}"
        self.files[path] = content
        link = f'<a href="{path}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a><br>'
        self.pages.setdefault(folder, []).append(link)
        return path

    def add_torch(self, version: str, *, python: str = PYTHON) -> str:
        """Add torch: a build of PyTorch's index, or PyPI's build; return its path."""
        tags = f"{python}-{python}-manylinux_2_17_{machine()}"
        folder = f"/whl/{version.split('+')[1]}/torch/" if "+" in version else "/simple/torch/"
        return self.add(folder, *make_wheel("torch", version, tags, filling=FILLING_BYTES))

    def num_asked(self, path: str, method: str = "GET") -> int:
        """Return the number of requests for a path."""
        return sum(asked[:2] == (method, path) for asked in self.asked)


@contextlib.contextmanager
def serving() -> Iterator[Index]:
    """Serve an index on this machine during the block."""
    index = Index()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield index
    finally:
        index.is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.index = index
    return Handler


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        # A killed client resets its connection.
        with contextlib.suppress(ConnectionError):
            self._send(self._answer())

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> bytes:
        """Send the status and headers, and return the body."""
        index, part = self.index, self.headers.get("Range", "")
        index.asked.append((self.command, self.path, part))
        if any(self.path.startswith(path) for path in index.hanging):
            index.is_over.wait()
        refused = [status for path, status in index.refused.items() if self.path.startswith(path)]
        page = index.pages.get(self.path)
        content = "".join(page).encode() if page is not None else index.files.get(self.path)
        if refused or content is None:
            self.send_error(refused[0] if refused else 404)
            return b""
        begin = int(part.removeprefix("bytes=").removesuffix("-")) if part and index.has_ranges else 0
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Type", "text/html" if page is not None else "application/zip")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        return content[begin:]

    def _send(self, content: bytes) -> None:
        cut, stall = self.index.cut_after.pop(self.path, None), self.index.stalls_after.pop(self.path, None)
        self.wfile.write(content[: cut or stall])
        self.wfile.flush()
        if stall is not None:
            self.index.is_stalled.set()
            self.index.is_over.wait()
