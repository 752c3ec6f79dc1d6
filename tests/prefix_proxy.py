"""A reverse proxy that serves a page below a path prefix, like the one in front of a classroom machine."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOT_PASSED_ON = ("connection", "keep-alive", "transfer-encoding", "host")


def is_passed_on(name: str) -> bool:
    """Return True if the header is end-to-end, not hop-by-hop."""
    return name.lower() not in NOT_PASSED_ON


@contextlib.contextmanager
def in_front_of(
    port: int, prefix: str, names: Mapping[str, str] | None = None, *, keeps_prefix: bool = False
) -> Iterator[str]:
    """Serve the server on `port` below a prefix; yield the URL.

    Args:
        keeps_prefix: Forward the full path. Otherwise the prefix is removed.
        names: User names by the value of `X-Password`. The proxy sends the name as `X-Remote-User` and
            removes this header from clients' requests.
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
            # The client may disconnect before the response is complete.
            with contextlib.closing(upstream), contextlib.suppress(ConnectionError):
                path = self.path if keeps_prefix else self.path.removeprefix(prefix)
                upstream.request(self.command, path, body or None, headers)
                self.pass_on(upstream.getresponse())

        do_POST = do_GET  # noqa: N815 - name required by the base class

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
            """Disable request logging in tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
