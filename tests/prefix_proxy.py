"""A reverse proxy that puts a page below a prefix, as one in front of a class's machine would."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOT_PASSED_ON = ("connection", "keep-alive", "transfer-encoding", "host")


def is_passed_on(name: str) -> bool:
    """Tell whether a header is for both sides, not only for one connection."""
    return name.lower() not in NOT_PASSED_ON


@contextlib.contextmanager
def in_front_of(
    port: int, prefix: str, names: Mapping[str, str] | None = None, *, keeps_prefix: bool = False
) -> Iterator[str]:
    """Serve what listens on a port below a prefix; return the address.

    Args:
        keeps_prefix: the whole path is passed on; else the prefix is taken away.
        names: the people it knows, by what they send as `X-Password`: their names it sends as
            `X-Remote-User`, and lets no client send that itself.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if is_passed_on(name)}
            headers |= {"Host": self.headers["host"], "X-Forwarded-For": self.client_address[0]}
            if names is not None:
                headers = {name: value for name, value in headers.items() if name.lower() != "x-remote-user"}
                if name := names.get(headers.pop("X-Password", "")):
                    headers["X-Remote-User"] = name
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
            # Whoever asked may be gone before the answer is.
            with contextlib.closing(upstream), contextlib.suppress(ConnectionError):
                path = self.path if keeps_prefix else self.path.removeprefix(prefix)
                upstream.request(self.command, path, body or None, headers)
                self.pass_on(upstream.getresponse())

        do_POST = do_GET  # noqa: N815 - the base class's word

        def pass_on(self, answer: http.client.HTTPResponse) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if is_passed_on(name):
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *words: object) -> None:
            """Say nothing: a test has enough to read."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
