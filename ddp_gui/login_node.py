"""Runs the page on a cluster's login node, and shows it on the user's own machine through ssh."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ddp_gui.http import listening
from trainers.files.plain_files import is_readable
from trainers.machine import environment

BEAT = b"\n"
BEAT_EVERY_S = 5.0
SILENT_FOR_S = 30.0


def end_without(descriptor: int, end: Callable[[], None], silent_for_s: float = SILENT_FOR_S) -> None:
    """Call `end`, in a thread, when a descriptor is closed or silent for `silent_for_s`."""
    threading.Thread(
        target=_watch, args=(descriptor, end, silent_for_s), name="lifeline", daemon=True
    ).start()


def _watch(descriptor: int, end: Callable[[], None], silent_for_s: float) -> None:
    while is_readable(descriptor, silent_for_s) and os.read(descriptor, 1024):
        pass
    end()


HOST = "127.0.0.1"
PIECE_BYTES = 65_536


class SocketForwarder:
    """Listens on a local port and forwards each connection to a Unix socket.

    Args:
        port: the local port; 0: any free port.
        behind: the Unix socket on which ssh listens.
    Attributes:
        is_page_ready: set while the page answers; otherwise connections are closed.
    Raises:
        OSError: if the port cannot be used.
    """

    def __init__(self, port: int, behind: Path) -> None:
        self._behind = behind
        self.is_page_ready = threading.Event()
        self._listening = socket.create_server((HOST, port))
        self.port: int = self._listening.getsockname()[1]

    def open(self) -> None:
        """Accept connections in threads, until this process ends."""
        threading.Thread(target=self._accept, name="forwarder", daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, address = self._listening.accept()
            if not self.is_page_ready.is_set() or not listening.is_own(address, client.getsockname()):
                client.close()
                continue
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as page:
            try:
                page.connect(str(self._behind))
            except OSError:
                return  # the browser retries after a closed connection
            back = threading.Thread(target=_copy, args=(page, client), daemon=True)
            back.start()
            _copy(client, page)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy data in one direction until one side closes; then shut this direction down."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(PIECE_BYTES):
            target.sendall(chunk)
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(how)


# ssh's exit code if it could not connect, or lost the connection.
NO_CONNECTION = 255
# Beginning of the line that the page prints when it is ready.
READY = "The page is at "
# Ports above the usual ports of services and below Linux's ephemeral ports.
FIRST_PORT, NUM_PORTS = 20_000, 12_000
WAITS_S = (1.0, 2.0, 5.0, 10.0, 15.0)
END_WITHIN_S = 5.0
MOST_LINES = 20

_PYTHON = ".venv/bin/python"


def serve(
    name: str,
    *,
    project: str,
    options: Sequence[str],
    port: int,
    open_browser: bool,
    say: Callable[[str], None] = print,
) -> str:
    """Show the page of a login node on this machine until it ends; return the reason.

    Args:
        name: the login node's name as an argument of `ssh`.
        project: the folder of this project on the login node.
        options: options of the page on the login node.
    Raises:
        OSError: if the local port cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-ssh-") as folder:
        behind = Path(folder) / "page"
        forwarder = SocketForwarder(port, behind)
        forwarder.open()
        was_ready, num_failures = False, 0
        while True:
            connection = LoginNodeConnection(name, project, options, behind)
            if connection.wait_until_ready(say):
                forwarder.is_page_ready.set()
                if not was_ready:
                    address = f"http://{HOST}:{forwarder.port}"
                    say(f"The page of {name} is at {address} (Ctrl-C ends the page, not the jobs)")
                    if open_browser:
                        webbrowser.open(address)
                else:
                    say(f"The connection to {name} is restored.")
                was_ready, num_failures = True, 0
            reason = connection.wait_for_end()
            forwarder.is_page_ready.clear()
            if not was_ready or not connection.is_lost:
                return reason
            wait_s = WAITS_S[min(num_failures, len(WAITS_S) - 1)]
            num_failures += 1
            say(
                f"The connection to {name} is lost ({reason}). Jobs continue; trying again in {wait_s:.0f} s."
            )
            time.sleep(wait_s)


class LoginNodeConnection:
    """One ssh process, with the page that it has started."""

    def __init__(self, name: str, project: str, options: Sequence[str], behind: Path) -> None:
        remote_port = FIRST_PORT + secrets.randbelow(NUM_PORTS)
        behind.unlink(missing_ok=True)
        self._last_lines: list[str] = []
        try:
            self._ssh = subprocess.Popen(
                [
                    *("ssh", "-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
                    *("-o", "ExitOnForwardFailure=yes", "-L", f"{behind}:{HOST}:{remote_port}"),
                    *("--", name, _remote_command(project, remote_port, options)),
                ],
                env=environment.for_a_child(keep=("SSH_AUTH_SOCK",)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except FileNotFoundError as error:
            raise OSError("ssh is not installed on this machine: install OpenSSH's client") from error
        threading.Thread(target=self._send_heartbeats, name="beat", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """True if ssh has ended because the connection was lost, not because the page ended."""
        return self._ssh.returncode == NO_CONNECTION or self._ssh.returncode < 0

    def wait_until_ready(self, say: Callable[[str], None]) -> bool:
        """Forward the output of ssh and the page until the page answers; return False if it does not."""
        for line in self._lines():
            if line.startswith(READY):
                threading.Thread(target=self._forward_output, args=(say,), daemon=True).start()
                return True
            say(line)
        return False

    def wait_for_end(self) -> str:
        """Wait until ssh has ended; return its last line of output."""
        try:
            self._ssh.wait()
        finally:
            self._end()
        return (
            self._last_lines[-1] if self._last_lines else f"ssh ended with exit code {self._ssh.returncode}"
        )

    def _lines(self) -> Iterator[str]:
        assert self._ssh.stdout is not None
        for line in self._ssh.stdout:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                self._last_lines.append(text)
                del self._last_lines[:-MOST_LINES]
                yield text

    def _forward_output(self, say: Callable[[str], None]) -> None:
        for line in self._lines():
            say(line)

    def _send_heartbeats(self) -> None:
        assert self._ssh.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while self._ssh.poll() is None:
                self._ssh.stdin.write(BEAT)
                self._ssh.stdin.flush()
                time.sleep(BEAT_EVERY_S)

    def _end(self) -> None:
        """End ssh. The page ends when its standard input is closed or silent."""
        with contextlib.suppress(OSError):
            if self._ssh.stdin is not None:
                self._ssh.stdin.close()
        try:
            self._ssh.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()


def _remote_command(project: str, port: int, options: Sequence[str]) -> str:
    """Return the command for the login node's shell; every value in it is quoted."""
    page = [_PYTHON, "app.py", "--no-browser", "--until-silence", "--port", str(port)]
    no_folder = (
        f"there is no folder {project} on the login node: copy this project there, or specify it with "
        "--project"
    )
    no_python = f"{project} on the login node has no .venv: run ./run.sh --help once in this folder"
    no_start = (
        f"you cannot execute {project}/{_PYTHON} on the login node, for the reason in the line above. It "
        "must be an interpreter that every user can execute"
    )
    script = (
        f"cd {shlex.quote(project)} || {{ echo {shlex.quote(no_folder)} >&2; exit 1; }}\n"
        f"[ -d .venv ] || {{ echo {shlex.quote(no_python)} >&2; exit 1; }}\n"
        f"{_PYTHON} -c '' || {{ echo {shlex.quote(no_start)} >&2; exit 1; }}\n"
        f"exec {shlex.join([*page, *options])}"
    )
    # Use sh, because the user's login shell can be any shell.
    return f"exec sh -c {shlex.quote(script)}"
