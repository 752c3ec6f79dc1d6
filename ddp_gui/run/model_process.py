"""The processes that answer for trained models: started on request, one or two per user, short-lived.

`trainers.predict.server` describes the other side. The page has no torch, so it only passes JSON on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
import psutil

from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import cuda_environment, environment
from trainers.machine.os_errors import explain

MODULE = "trainers.predict.server"
# Importing torch takes one to two seconds, and on a machine that trains several.
START_S = 120.0
# Loading a model and its data, and one answer.
ANSWER_S = 30.0
MOST_PER_PERSON = 2
MOST_PROCESSES = 8
MAX_LINE = 16 * 2**20
# As in `trainers.predict.server`, which reads no longer line.
MAX_QUESTION = 2**20
# The template has about 250 MB; nothing is made ready where this much is not available.
READY_BYTES = 1_500 * 10**6
# As in `trainers.predict.server`, which needs torch.
ORDER_BYTES = 16

Answer = dict[str, Any]


class ModelError(ValueError):
    """A model cannot answer; the message says why, and what to do."""


def _order(words: bytes) -> bytes:
    return words.ljust(ORDER_BYTES)


def _line_of(question: Answer) -> bytes:
    """Return a question as it is sent.

    Raises:
        ModelError: if it is too long, or has a number or a character that JSON cannot hold.
    """
    try:
        line = orjson.dumps(question)
    except TypeError as error:
        raise ModelError(f"this input cannot be sent to the model: {error}") from error
    if len(line) >= MAX_QUESTION:
        raise ModelError(f"this input has {len(line):,} bytes, but allowed are: {MAX_QUESTION:,}")
    return line + b"\n"


class _Process:
    """One process of a user, and the socket to it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read = b""
        self.is_busy = True
        self.used_at = time.monotonic()
        self.pid = int(self.receive(time.monotonic() + ANSWER_S)["pid"])

    def send(self, line: bytes) -> None:
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(line)

    def receive(self, until: float) -> Answer:
        """Return the next answer.

        Raises:
            TimeoutError: if there is none until then.
            ConnectionError: if the process has ended.
        """
        while b"\n" not in self._read:
            rest_s = until - time.monotonic()
            if rest_s <= 0:
                raise TimeoutError
            self._socket.settimeout(rest_s)
            piece = self._socket.recv(65536)
            if not piece or len(self._read) > MAX_LINE:
                raise ConnectionResetError
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        answer: Answer = orjson.loads(line)
        return answer

    def has_ended(self) -> bool:
        """Return True if an idle process is gone: it ends after some minutes, or was killed."""
        try:
            return bool(select.select([self._socket], [], [], 0)[0])
        except (OSError, ValueError):
            return True

    def close(self) -> None:
        """Close the socket: the process ends, unless it computes."""
        self._socket.close()


class ModelProcesses:
    """All processes of the page; thread-safe.

    Args:
        keeps_ready: True if the template may be started before somebody asks.
    """

    def __init__(self, *, keeps_ready: bool = True) -> None:
        self._keeps_ready = keeps_ready
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._processes: dict[str, list[_Process]] = {}
        # Processes that are being started, by user.
        self._num_begun: Counter[str] = Counter()
        self._starting = threading.Lock()
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._code = ""

    def get_ready(self) -> None:
        """Start the template, because a user may soon ask; does nothing without enough free memory."""
        if not self._keeps_ready or psutil.virtual_memory().available < READY_BYTES:
            return
        if self._starting.acquire(blocking=False):
            try:
                self._running_template()
            except OSError as error:
                print(f"Models could not be made ready ({explain(error)}).", flush=True)
            finally:
                self._starting.release()

    def ask(self, person: str, question: Answer) -> Answer:
        """Return the answer to a question.

        Raises:
            ModelError: if the model refuses, or the process ended or took too long.
        """
        return list(self.stream(person, question))[-1]

    def stream(self, person: str, question: Answer) -> Iterator[Answer]:
        """Yield the answers to a question; if the iterator is closed early, the process stops computing.

        Raises:
            ModelError: if the model refuses, or the process ended or took too long.
        """
        line = _line_of(question)
        process = self._take(person)
        is_good = False
        try:
            process.send(line)
            while True:
                answer = process.receive(time.monotonic() + ANSWER_S)
                if "error" in answer:
                    is_good = True
                    raise ModelError(answer["error"])
                if answer.pop("end", False):
                    is_good = True
                    yield answer
                    return
                yield answer
        except GeneratorExit:
            is_good = self._stop(process)
            raise
        except TimeoutError:
            message = f"the model did not answer within {ANSWER_S:.0f} s, so its process was ended: try again"
            raise ModelError(message) from None
        except OSError:
            raise ModelError(
                "the process that runs the model was ended (by a user, or because the memory ran out): try "
                "again"
            ) from None
        finally:
            self._give_back(person, process, is_good=is_good)

    def close(self) -> None:
        """End all processes, when the page ends."""
        with self._lock:
            for process in [each for some in self._processes.values() for each in some]:
                process.close()
            self._processes.clear()
        template = self._template
        if template is not None:
            template.kill()  # without the lock: it may just be starting
            template.wait()

    def _stop(self, process: _Process) -> bool:
        """Make a process stop after the token that it computes; return True if it did."""
        try:
            process.send(_line_of({"do": "stop"}))
            until = time.monotonic() + ANSWER_S
            while not process.receive(until).get("end"):
                pass
        except OSError:  # a timeout is one, too
            return False
        return True

    def _take(self, person: str) -> _Process:
        """Return an idle process of this user, or a new one; wait while the user's are all busy."""
        with self._changed:
            ends_at = time.monotonic() + ANSWER_S + (START_S if self._num_begun[person] else 0.0)
            while True:
                own = self._processes.setdefault(person, [])
                for gone in [each for each in own if not each.is_busy and each.has_ended()]:
                    own.remove(gone)
                    gone.close()
                idle = [each for each in own if not each.is_busy]
                if idle:
                    chosen = max(idle, key=lambda each: each.used_at)
                    chosen.is_busy = True
                    return chosen
                if len(own) + self._num_begun[person] < MOST_PER_PERSON and self._has_room():
                    self._num_begun[person] += 1
                    break
                if not self._changed.wait(ends_at - time.monotonic()):
                    raise ModelError("other models are being tried at this moment: try again in a minute")
        started = None
        try:
            started = self._start()
            return started
        finally:
            with self._changed:
                self._num_begun[person] -= 1
                if started is None:
                    self._changed.notify_all()
                else:
                    self._processes.setdefault(person, []).append(started)

    def _has_room(self) -> bool:
        """Return True if one more process may start; ends the idle one that was used longest ago."""
        everyone = [(each, own) for own in self._processes.values() for each in own]
        if len(everyone) + self._num_begun.total() < MOST_PROCESSES:
            return True
        idle = [(each, own) for each, own in everyone if not each.is_busy]
        if not idle:
            return False
        oldest, own = min(idle, key=lambda pair: pair[0].used_at)
        own.remove(oldest)
        oldest.close()
        return True

    def _give_back(self, person: str, process: _Process, *, is_good: bool) -> None:
        with self._changed:
            process.is_busy = False
            process.used_at = time.monotonic()
            if not is_good:
                own = self._processes.get(person, [])
                if process in own:
                    own.remove(process)
                self._kill(process)
            self._changed.notify_all()

    def _kill(self, process: _Process) -> None:
        process.close()
        if self._control is not None:
            with contextlib.suppress(OSError):  # the template has ended, and its forks with it
                self._control.sendall(_order(b"kill %d" % process.pid))

    def _start(self) -> _Process:
        """Return a new process, forked from the template."""
        for is_last in (False, True):
            ours, theirs = socket.socketpair()
            try:
                with theirs, self._starting:
                    control = self._running_template()
                    socket.send_fds(control, [_order(b"fork")], [theirs.fileno()])
                return _Process(ours)
            except (OSError, LookupError, ValueError) as error:
                ours.close()
                # The template exits when it is idle, perhaps at this moment.
                with self._starting:
                    self._end_template()
                if is_last:
                    reason = explain(error)
                    raise ModelError(
                        f"the process that runs models could not be started ({reason}): try again"
                    ) from error
        raise AssertionError

    def _running_template(self) -> socket.socket:
        code = plain_files.fingerprint_of_code()
        is_alive = self._template is not None and self._template.poll() is None
        if is_alive and code == self._code and self._control is not None:
            return self._control
        self._end_template()
        ours, theirs = socket.socketpair()
        with theirs:
            self._template = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno())],
                cwd=REPOSITORY,
                env=environment.for_a_child(cuda_environment.none_visible()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._control, self._code = ours, code
        ours.settimeout(START_S)
        if ours.recv(16) != b"ready\n":
            raise ConnectionResetError("it ended while it started")
        return ours

    def _end_template(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._template is not None:
            self._template.kill()  # it never computes, and its forks end with it
            self._template.wait()
            self._template = None
