"""A template process that has imported torch, and its forks, which run trained models or inspect own data.

    python -m trainers.predict.server DESCRIPTOR

The page starts the template when a user opens the first model or inspects data. Over a socket (DESCRIPTOR),
the page orders a fork and passes the socket of the new process. A fork answers its first question in a few
hundredths of a second; importing torch would take more than one second. Messages are lines of JSON. A model's
process gets one question, then sends its answers, of which the last one has `end`. An inspection gets its
arguments and environment once, and prints to the files that the page has passed. When it has ended, the
template sends its `exit_code`.

A model's process computes on the CPU, or on the GPU that a question names. It ends after a few minutes
without a question. Every fork ends with the page, because its socket is closed then. The template itself
never computes, because a fork would lack the threads of the computation. Forks close the template's files and
sockets.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainers import registry
from trainers.contract.config import parse as parse_config
from trainers.contract.rundir import RunDirectory, library_error_text
from trainers.data.own.processes import bounded_memory
from trainers.files.plain_files import is_readable
from trainers.machine import cuda_environment, facilities
from trainers.machine.lifeline import die_with_parent
from trainers.plugins import inspect_data
from trainers.predict.prepare import InputError
from trainers.predict.program import snippet
from trainers.predict.trained_model import Models, compare_start

# Nice level, below the priority of the page and training.
NICENESS = 5
IDLE_S = 120.0
TEMPLATE_IDLE_S = 600.0
# Maximum private memory of a fork in addition to the template's; also its maximum GPU memory.
MEMORY_BYTES = 4 * 2**30
MAX_LINE = 2**20
# Length of an order to the template, which is fixed because a socket may join two orders.
ORDER_BYTES = 16
MODEL, INSPECTION = b"model", b"inspection"
SIGNALS = {b"kill": signal.SIGKILL, b"term": signal.SIGTERM}

# Errors whose messages are meant for users.
USUAL_ERRORS = (ValueError, LookupError, OSError)

Answer = dict[str, Any]


def main() -> None:
    """Serve as the template until the page closes the socket, or no order arrives for ten minutes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.nice(NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    registry.discover_all()
    gc.freeze()  # collections in forks skip existing objects, so their memory pages stay shared
    ended, noted = socket.socketpair()
    noted.setblocking(False)
    signal.set_wakeup_fd(noted.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the template ends with the page
    control.sendall(b"ready\n")
    # The descriptor on which the page waits for the exit code of an inspection; None for models.
    children: dict[int, int | None] = {}
    while True:
        ready = select.select([control, ended], [], [], TEMPLATE_IDLE_S)[0]
        if ended in ready:
            ended.recv(4096)
        _reap(children)
        if not ready and not children:
            return
        if control not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, ORDER_BYTES, 3)
        while message and len(message) < ORDER_BYTES:
            message += control.recv(ORDER_BYTES - len(message)) or bytes(ORDER_BYTES)
        if not message:
            return
        order, *pid = message.split()
        if order in SIGNALS:
            if int(pid[0]) in children:
                os.kill(int(pid[0]), SIGNALS[order])
        elif descriptors:
            _fork(order, descriptors, children)


def _reap(children: dict[int, int | None]) -> None:
    """Reap children that have ended. Before, their process ids cannot be reused."""
    for pid, waiting in list(children.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0:
            continue
        del children[pid]
        if waiting is not None:
            # The page may have ended.
            with contextlib.suppress(OSError), socket.socket(fileno=waiting) as connected:
                Connection(connected).send({"exit_code": os.waitstatus_to_exitcode(status)})


@functools.cache
def _import_for_inspections() -> None:
    """Import the modules that only inspections need, before the first fork. None of them starts a thread."""
    for name in ("torch._dynamo", "duckdb", "PIL.Image"):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - of a broken package; the inspection reports it, if it needs it
            traceback.print_exc()
    if (images := sys.modules.get("PIL.Image")) is not None:
        images.init()
    gc.freeze()


def _fork(order: bytes, descriptors: list[int], children: dict[int, int | None]) -> None:
    if order == INSPECTION:
        _import_for_inspections()
    parent = os.getpid()
    sys.stdout.flush()  # output of plug-ins, which forks would print again
    try:
        pid = os.fork()
    except OSError:  # no memory, or too many processes; the page gets an end-of-file
        traceback.print_exc()
        for descriptor in descriptors:
            os.close(descriptor)
        return
    if pid:
        children[pid] = descriptors[0] if order == INSPECTION else None
        for descriptor in descriptors:
            if descriptor != children[pid]:
                os.close(descriptor)
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for handled in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(handled, signal.SIG_DFL)
        die_with_parent(parent)
        connected, *outputs = descriptors
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
        for descriptor in facilities.own_descriptors():
            if descriptor > 2 and descriptor != connected:
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.close(descriptor)
        connection = Connection(socket.socket(fileno=connected))
        connection.send({"pid": os.getpid()})
        code = _inspect(connection) if order == INSPECTION else _answer(connection)
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
        """Send one value; raises an OSError if the page has ended."""
        self._socket.sendall(json.dumps(value, allow_nan=False).encode() + b"\n")

    def receive(self, timeout_s: float) -> Answer | None:
        """Return the next value; None if none arrives in time, or the other side has ended."""
        while b"\n" not in self._read:
            if len(self._read) > MAX_LINE or not is_readable(self._socket, timeout_s):
                return None
            chunk = self._socket.recv(65536)
            if not chunk:
                return None
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        value: Answer = json.loads(line)
        return value

    def is_interrupted(self) -> bool:
        """Return True if the other side has sent data or has ended."""
        return bool(self._read) or is_readable(self._socket)

    def close(self) -> None:
        """Close this side."""
        self._socket.close()


def _inspect(connection: Connection) -> int:
    """Run `trainers.plugins.inspect_data`; return the exit code."""
    request = connection.receive(IDLE_S)
    connection.close()
    if request is None:
        return 1
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    sys.argv = [inspect_data.__file__, *request["arguments"]]
    try:
        inspect_data.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - removes temporary folders; the fork itself ends by os._exit
        sys.stdout.flush()
    return 0


def _answer(connection: Connection) -> int:
    """Answer questions until the page closes the socket, or asks nothing for two minutes; return 0."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    # Address space is not limited, because CUDA reserves it for the memory of the host and of all GPUs.
    with bounded_memory(MEMORY_BYTES):
        return _answer_all(connection, Models())


def _answer_all(connection: Connection, models: Models) -> int:
    while (question := connection.receive(IDLE_S)) is not None:
        if question["do"] == "stop":
            continue  # the message arrived after the last token
        try:
            for answer in answers(models, question):
                connection.send(answer)
                if "end" not in answer and connection.is_interrupted():
                    connection.receive(0)
                    connection.send({"end": True, "is_stopped": True})
                    break
        except (BrokenPipeError, ConnectionResetError):
            break
        except Exception as error:  # noqa: BLE001 - models are plug-ins, which may raise anything; it is shown
            if question.get("gpu") and not isinstance(error, USUAL_ERRORS):
                # CUDA failed or the GPU's memory is full: the page asks another process, on the CPU.
                traceback.print_exc()
                return 1
            connection.send({"end": True, "error": _text_of(error)})
    return 0


@functools.cache
def _gpu(uuid: str) -> torch.device:
    """Let this process, which has not called CUDA yet, use a GPU with the memory limit of the CPU."""
    os.environ.update(cuda_environment.only([uuid]))
    if facilities.are_available():
        # Remove the limit of host memory, because the private memory of CUDA is not known in advance.
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    device = torch.device("cuda", 0)
    share = MEMORY_BYTES / torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    torch.backends.cudnn.allow_tf32 = False  # so that answers equal those of the CPU
    return device


def _text_of(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"the model needs more memory than the limit of {MEMORY_BYTES // 2**30} GB"
    if isinstance(error, USUAL_ERRORS):
        return library_error_text(error)
    traceback.print_exception(error)
    return f"the model failed: {type(error).__name__}: {library_error_text(error)}"


def answers(models: Models, question: Answer) -> Iterator[Answer]:
    """Yield the answers to a question; the last one has `end`.

    Raises:
        ValueError: if the model cannot answer; the message gives the reason.
    """
    run = RunDirectory(Path(question["run_dir"]))
    model = models.get(run, question["step"])
    if question.get("gpu"):
        model.move(_gpu(question["gpu"]))
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
