"""The page's side of the template: a process that has imported torch and forks others within milliseconds.

`trainers.predict.server` describes the other side. The page has no torch, so it only passes JSON on.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
import psutil

from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import cuda_environment, environment
from trainers.machine.os_errors import explain

MODULE = "trainers.predict.server"
# Time limit for the start: importing torch takes one to two seconds, and several while the machine trains.
START_S = 120.0
SEND_S = 30.0
MAX_LINE = 16 * 2**20
# Minimum free memory to start the template in advance; it uses about 250 MB.
READY_BYTES = 1_500 * 10**6
# Same value as in `trainers.predict.server`, which needs torch.
ORDER_BYTES = 16

Answer = dict[str, Any]


class TemplateError(ConnectionError):
    """The template could not be started, or was closed."""


class Fork:
    """A process forked from the template, and the socket to it."""

    def __init__(self, connection: socket.socket, control: socket.socket) -> None:
        self._socket, self._control = connection, control
        self._read = b""
        self.pid = int(self.receive(time.monotonic() + START_S)["pid"])

    def send(self, line: bytes) -> None:
        """Send a line of JSON."""
        self._socket.settimeout(SEND_S)
        self._socket.sendall(line)

    def receive(self, deadline: float) -> Answer:
        """Return the next answer.

        Raises:
            TimeoutError: if none arrives in time.
            ConnectionError: if the process has ended.
        """
        while b"\n" not in self._read:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            chunk = self._socket.recv(65536)
            if not chunk or len(self._read) > MAX_LINE:
                raise ConnectionResetError
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        answer: Answer = orjson.loads(line)
        return answer

    def has_ended(self) -> bool:
        """Return True if an idle process has ended, after its idle time or because it was killed."""
        try:
            return plain_files.is_readable(self._socket)
        except (OSError, ValueError):
            return True

    def close(self) -> None:
        """Close the socket, which ends a process that reads from it."""
        self._socket.close()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(b"term")

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(b"kill")

    def _signal(self, name: bytes) -> None:
        # Let the template send the signal: it knows whether the process id still belongs to its child.
        with contextlib.suppress(OSError):  # the template and its forks have ended
            self._control.sendall(_pad_order(b"%s %d" % (name, self.pid)))


Forked = TypeVar("Forked", bound=Fork)


class TorchTemplate:
    """The template of a page, started when it is first needed; thread-safe."""

    def __init__(self) -> None:
        self.is_closed = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._code = ""

    def get_ready(self) -> None:
        """Start the template, because it may soon be needed. Does nothing if memory is low."""
        if psutil.virtual_memory().available < READY_BYTES:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._ensure_running()
            except OSError as error:
                print(f"The process for trained models could not be started ({explain(error)}).", flush=True)
            finally:
                self._lock.release()

    def fork(
        self, kind: Callable[[socket.socket, socket.socket], Forked], order: bytes, *descriptors: int
    ) -> Forked:
        """Return a new process.

        Args:
            kind: constructs the result.
            order: the task of the process (see `trainers.predict.server`).
            descriptors: file descriptors for the process.
        Raises:
            TemplateError: if the template was closed, or two templates in a row failed to fork.
        """
        for is_last in (False, True):
            page_socket, child_socket = socket.socketpair()
            control = None
            try:
                with child_socket, self._lock:
                    control = self._ensure_running()
                    socket.send_fds(control, [_pad_order(order)], [child_socket.fileno(), *descriptors])
                return kind(page_socket, control)
            except (OSError, LookupError, ValueError) as error:
                page_socket.close()
                # An idle template may exit at this moment, or another thread may have replaced it. Keep a
                # running template, because other threads use its forks.
                with self._lock:
                    if control is not None and self._control is control:
                        has_ended = plain_files.is_readable(control)
                        if has_ended or isinstance(error, TimeoutError):
                            self._end()
                if is_last or self.is_closed:
                    raise TemplateError(explain(error)) from error
        raise AssertionError

    def close(self) -> None:
        """End the template and its forks. Called when the page ends."""
        self.is_closed = True
        process = self._process
        if process is not None:
            process.kill()  # without the lock, because the process may just be starting
            process.wait()

    def _ensure_running(self) -> socket.socket:
        code = plain_files.fingerprint_of_code()
        is_alive = self._process is not None and self._process.poll() is None
        if is_alive and code == self._code and self._control is not None:
            return self._control
        self._end()
        if self.is_closed:
            raise ConnectionAbortedError("the page ends")
        page_socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(child_socket.fileno())],
                cwd=REPOSITORY,
                env=environment.for_a_child(cuda_environment.none_visible()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[child_socket.fileno()],
                # Ctrl+C in the page's terminal reaches only the page, which closes the template.
                start_new_session=True,
            )
        self._control, self._code = page_socket, code
        page_socket.settimeout(START_S)
        try:
            if self.is_closed:  # closed in the meantime
                raise ConnectionAbortedError("the page ends")
            if page_socket.recv(16) != b"ready\n":
                raise ConnectionResetError("the template ended while it started")
        except OSError:
            self._end()
            raise
        return page_socket

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()  # the template never computes, and its forks end with it
            self._process.wait()
            self._process = None


def _pad_order(text: bytes) -> bytes:
    return text.ljust(ORDER_BYTES)
