"""Start the page without a terminal, and show progress and errors of the start in a browser.

    python3 rankscope/first_start.py [OPTIONS of the page]      in a checkout
    rankscope start [OPTIONS of the page]                       in an installed program

The first start installs packages, which takes minutes. This program shows the output of the start on a small
page (assets/first_start.html), which then opens the app. The program uses only the standard library, because
nothing else is installed yet.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PORT = 7860
MAX_LINES = 200
MAX_LINE = 400
# Time to keep serving the small page after the app is ready, so that the page can poll once more.
READY_FOR_S = 10.0
# Patterns in the output of tools/torch_build.py and pip.
_PART = re.compile(r"^(\S+): (\d+) of (\d+) MB")
_WHEEL = re.compile(r"^\s*Downloading (\S+?)-[\d.]+\S* \(([\d.]+) ([kM])B\)")
_ANNOUNCED = re.compile(r"^Download: ([\d,]+) MB from .* about (.*) by pip")
_READY = re.compile(r"^The page is at (https?://\S+)")


class InstallProgress:
    """The progress of the start, from the output of its command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._step = "Starting …"
        self._announced = ""
        self._loaded_mb = self._part_mb = 0.0
        self._total_mb: float | None = None
        self._address: str | None = None
        self._exit_code: int | None = None

    def add(self, line: str) -> None:
        """Update the progress from a line of output."""
        line = line.rstrip()[:MAX_LINE]
        if not line:
            return
        with self._lock:
            self._lines.append(line)
            if line.startswith(("Download: ", "Download by pip: ")):
                self._announced = line
            if match := _READY.match(line):
                self._address = match[1]
            elif match := _ANNOUNCED.match(line):
                other_megabytes = sum(
                    float(each.replace(",", "")) for each in re.findall(r"([\d,]+) MB", match[2])
                )
                self._total_mb = float(match[1].replace(",", "")) + other_megabytes
            elif match := _PART.match(line):
                self._part_mb, self._step = float(match[2]), f"Downloading {match[1]}"
            elif match := _WHEEL.match(line):
                self._loaded_mb += float(match[2]) / (1000 if match[3] == "k" else 1)
                self._step = f"Downloading {match[1]}"
            elif line.startswith("Installing collected packages"):
                self._step = "Installing the downloaded packages"
                self._loaded_mb, self._part_mb = max(self._loaded_mb, self._total_mb or 0.0), 0.0
            elif line.endswith("…"):
                self._step = line.removesuffix("…").partition(": ")[0].rstrip()

    def end(self, exit_code: int) -> None:
        """Note that the command has ended."""
        with self._lock:
            self._exit_code = exit_code

    @property
    def is_ready(self) -> bool:
        return self._address is not None

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values for the browser."""
        with self._lock:
            state = "working" if self._exit_code is None else "failed"
            return {
                "state": "ready" if self._address and self._exit_code is None else state,
                "address": self._address,
                "step": self._step,
                "announced": self._announced,
                "loaded_mb": round(self._loaded_mb + self._part_mb),
                "total_mb": self._total_mb and round(self._total_mb),
                "exit_code": self._exit_code,
                "lines": list(self._lines),
            }


def serve(progress: InstallProgress) -> ThreadingHTTPServer:
    """Start a server of the small page, in a thread, on a free port of this machine, and return it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Check the host name, because pages of other sites could read the output by DNS rebinding.
            if self.headers.get("Host") != f"127.0.0.1:{server.server_port}":
                self.send_error(403)
                return
            is_page = self.path == "/"
            if not is_page and self.path != "/progress":
                self.send_error(404)
                return
            body = page if is_page else json.dumps(progress.to_json()).encode()
            self.send_response(200)
            kind = "text/html" if is_page else "application/json"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    page = _page().read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return server


def is_open(port: int) -> bool:
    """Return True if the page is already served on this port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/")
        return b"Rankscope" in connection.getresponse().read(1 << 20)
    return False


def open_browser(address: str) -> None:
    """Open the URL in a browser; on WSL, in the browser of Windows."""
    if (windows := shutil.which("cmd.exe")) is not None:
        subprocess.run([windows, "/c", "start", "", address], check=False, stderr=subprocess.DEVNULL)
    elif not webbrowser.open(address):
        print(f"No browser could be opened. Open this URL in a browser: {address}", flush=True)


def _page() -> Path:
    return (HERE if (HERE / "app.py").is_file() else HERE.parent) / "assets" / "first_start.html"


def program() -> list[str]:
    """Return the command that starts the page, of the installed program or of the checkout."""
    if (HERE / "app.py").is_file():
        return [sys.executable, "-m", "rankscope"]
    return ["bash", str(HERE.parent / "run.sh")]


def start(command: Sequence[str], *, port: int = PORT, opens_browser: bool = True) -> int:
    """Run the command that starts the page, and show its progress; return its exit code."""
    if is_open(port):
        print(f"Rankscope is already running: http://127.0.0.1:{port}", flush=True)
        if opens_browser:
            open_browser(f"http://127.0.0.1:{port}")
        return 0
    progress = InstallProgress()
    server = serve(progress)
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    print(f"Progress of the start: {address}", flush=True)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        progress.add(f"{command[0]} cannot be started: {error.strerror}")
        process = None
    if opens_browser:
        open_browser(address)
    if process is None:
        return _show_failure(progress, 1)
    # Forward signals, so that they end the page.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: process.terminate())
    was_ready = False
    assert process.stdout is not None
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            progress.add(line)
            if progress.is_ready and not was_ready:
                was_ready = True
                print("Close this window to end the page. Runs continue.", flush=True)
                threading.Timer(READY_FOR_S, server.shutdown).start()
        exit_code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        exit_code = process.wait()
    return exit_code if was_ready or exit_code < 0 else _show_failure(progress, exit_code)


def _show_failure(progress: InstallProgress, exit_code: int) -> int:
    """Show the failure until the user closes the window; return the exit code."""
    progress.end(exit_code)
    if sys.stdin.isatty():
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            input("Rankscope did not start; see the reason above. Press Enter to close.")
    else:
        time.sleep(READY_FOR_S)
    return exit_code


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--port", default=str(PORT))
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    known, _ = parser.parse_known_args(arguments)
    if known.help:
        return subprocess.run([*program(), *arguments], check=False).returncode
    page_arguments = [each for each in arguments if each != "--no-browser"]
    port = int(known.port) if known.port.isdecimal() else PORT
    return start([*program(), *page_arguments, "--no-browser"], port=port, opens_browser=not known.no_browser)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
