"""Processes that answer for trained models: a template that has imported torch, and its forks.

    python -m trainers.predict.server DESCRIPTOR

The page starts the template when a user opens the first model, and asks it over a socket (DESCRIPTOR) to fork
a process for a user; the page sends the other end of that process's own socket along. A fork answers its
first question in a few hundredths of a second, because importing torch takes more than one second. Messages
are lines of JSON: one question, then its answers; the last one has `end`.

A process ends when it was not asked for some minutes, and when the page ends: both ends see that the socket
is closed. The template itself never computes: after a fork, threads of a computation would be missing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from trainers import registry
from trainers.contract.config import parse as parse_config
from trainers.contract.rundir import RunDirectory, library_error_text
from trainers.machine import facilities
from trainers.machine.lifeline import die_with_parent
from trainers.predict.prepare import InputError
from trainers.predict.program import snippet
from trainers.predict.trained_model import Models, compare_start

# Below the page and training.
NICENESS = 5
IDLE_S = 120.0
TEMPLATE_IDLE_S = 600.0
# Address space of a fork beyond the template's.
MEMORY_BYTES = 4 * 2**30
MAX_LINE = 2**20
# Orders to the template have a fixed length, because a socket may join two of them.
ORDER_BYTES = 16
FORK, KILL = b"fork", b"kill"

Answer = dict[str, Any]


def main() -> None:
    """Serve as the template until the page closes the socket, or nobody asked for ten minutes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.nice(NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    registry.discover_all()
    control.sendall(b"ready\n")
    children: set[int] = set()
    while True:
        is_asked = bool(select.select([control], [], [], TEMPLATE_IDLE_S)[0])
        _reap(children)
        if not is_asked:
            if children:
                continue
            return
        message, descriptors, _, _ = socket.recv_fds(control, ORDER_BYTES, 1)
        while message and len(message) < ORDER_BYTES:
            message += control.recv(ORDER_BYTES - len(message)) or bytes(ORDER_BYTES)
        if not message:
            return
        if message.startswith(FORK) and descriptors:
            children.add(_fork(control, descriptors[0]))
        elif message.startswith(KILL):
            pid = int(message.split()[1])
            if pid in children:
                os.kill(pid, signal.SIGKILL)


def _reap(children: set[int]) -> None:
    """Forget children that have ended. Until then their process id belongs to them."""
    for pid in list(children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        children.discard(pid)


def _fork(control: socket.socket, descriptor: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        control.close()
        die_with_parent(parent)
        if facilities.are_available():
            in_use = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, in_use + MEMORY_BYTES))
        serve(socket.socket(fileno=descriptor))
        code = 0
    except Exception:  # noqa: BLE001 - the process ends here; the page reads this in its log
        traceback.print_exc()
    finally:
        os._exit(code)


class Connection:
    """One side of a socket with lines of JSON."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read = b""

    def send(self, value: Answer) -> None:
        """Send one value; the page may be gone."""
        self._socket.sendall(json.dumps(value, allow_nan=False).encode() + b"\n")

    def receive(self, timeout_s: float) -> Answer | None:
        """Return the next value; None if there is none in this time, or the other side is gone."""
        while b"\n" not in self._read:
            if len(self._read) > MAX_LINE or not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            piece = self._socket.recv(65536)
            if not piece:
                return None
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        value: Answer = json.loads(line)
        return value

    def is_interrupted(self) -> bool:
        """Return True if the other side has sent something, or is gone."""
        return bool(self._read) or bool(select.select([self._socket], [], [], 0)[0])


def serve(connected: socket.socket) -> None:
    """Answer questions until the page closes the socket, or asks nothing for two minutes."""
    connection, models = Connection(connected), Models()
    connection.send({"pid": os.getpid()})
    while (question := connection.receive(IDLE_S)) is not None:
        if question["do"] == "stop":
            continue  # it arrived after the last token
        try:
            for answer in answers(models, question):
                connection.send(answer)
                if "end" not in answer and connection.is_interrupted():
                    connection.receive(0)
                    connection.send({"end": True, "is_stopped": True})
                    break
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:  # noqa: BLE001 - models are plug-ins, which may raise anything; it is shown
            connection.send({"end": True, "error": _text_of(error)})


def _text_of(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"the model needs more memory than the {MEMORY_BYTES // 2**30} GB that it may use here"
    if isinstance(error, ValueError | LookupError | OSError):
        return library_error_text(error)
    traceback.print_exception(error)
    return f"the model failed: {type(error).__name__}: {library_error_text(error)}"


def answers(models: Models, question: Answer) -> Iterator[Answer]:
    """Yield the answers to a question; the last one has `end`.

    Raises:
        ValueError: if the model cannot answer; the message says why.
    """
    run = RunDirectory(Path(question["run_dir"]))
    model = models.get(run, question["step"])
    if question["do"] == "describe":
        yield {"end": True, "step": model.step, "about": model.about, "code": snippet(model.about)}
    elif question["do"] == "compare":
        config = parse_config(question["config"])
        yield {"end": True, **compare_start(model, config, question["num_classes"])}
    elif question["do"] == "predict":
        yield {"end": True, **model.predict(question["inputs"])}
    elif question["do"] == "nearest":
        yield {"end": True, **model.nearest(question["inputs"], question["num_wanted"])}
    elif question["do"] == "confused":
        wanted = (question[name] for name in ("label", "prediction", "num_wanted"))
        yield {"end": True, **model.confused(*wanted)}
    else:
        for token in model.generate(question["prompt"], **question["options"]):
            yield {"token": token}
        yield {"end": True, "is_stopped": False, "step": model.step}


if __name__ == "__main__":
    main()
