"""One process per pytest worker that has imported torch and forks supervisors and their torchruns.

    python -u -m tests.torch_template PARENT_PID SOCKET PADDING
    python -m tests.torch_template app.py OPTIONS

The second command serves a page whose runs are forked from the template of its pytest worker.

Importing torch takes nearly all of the 3 s of CPU time of a start. Differences from a user's run: the
supervisor and torchrun are forked instead of executed, so torch is in the supervisor's memory, the supervisor
is a child of the template, and the free cores are not measured at the start. The ranks are forked from
torchrun as in a user's run. The following are executed as for a user: the runs of tests/faults, of pages that
tests/ui/conftest.py does not serve, of clusters and of scripts, commands entered manually, runs with one rank
(torch would use all cores), and runs with other values of variables that are read when torch is imported.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trainers.engines.local import fork_server, torchrun
from trainers.files.plain_files import REPOSITORY
from trainers.machine import lifeline, threads

# Environment variable with the socket of the pytest worker's template, for served pages.
ADDRESS = "TESTS_TORCH_TEMPLATE"
PAGE = ("-m", "tests.torch_template", "app.py")
SUPERVISOR = "trainers.engines.local.supervisor"
# Variables that Python, torch and its libraries read at import.
READ_AT_IMPORT = re.compile(
    "ATEN_|DNNL_|GLOO_|GOMP_|KMP_|LANG|LC_|LD_|MALLOC|MKL_|OMP_|OPENBLAS|PET_|PYTHON|PYTORCH|TZ$"
    "|TORCH(?!INDUCTOR_CACHE_DIR)"  # the page sets it for its runs
)
SOCKET = "socket"
FIRST_OWN_DESCRIPTOR = 3
MOST_DESCRIPTORS = 4096
MOST_REQUEST_BYTES = 1 << 20
POLL_S = 0.02
READY_WITHIN_S = 300.0
# Reserves space on the command line for a rank's process title.
PADDING = "x" * 200

execute = torchrun.start_module


class ForkedProgram:
    """A process forked by the template, with the interface of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.pid: int = self._receive()
        self.returncode: int | None = None
        connection.setblocking(False)

    def _receive(self) -> int:
        answer = self._connection.recv(64)  # each answer is one packet
        assert answer, "the template has ended"
        return int(answer)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(self._receive())
                self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends and return its exit code."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):  # the template may have just reaped it
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _begin_template() -> tempfile.TemporaryDirectory[str]:
    """Start the template, which ends with this process; return the folder of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="torch-template-")
    command = [sys.executable, "-u", "-m", __name__, str(os.getpid()), f"{folder.name}/new", PADDING]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=_FIRST_VARIABLES, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + READY_WITHIN_S
    while not Path(folder.name, SOCKET).exists():
        assert process.poll() is None and time.monotonic() < deadline, "no template"
        time.sleep(POLL_S)
    return folder


def address() -> str:
    """Return the socket of the template of this pytest worker."""
    return os.environ.get(ADDRESS) or f"{_begin_template().name}/{SOCKET}"


def start(command: Sequence[str], output: BinaryIO, variables: Mapping[str, str]) -> Any:
    """Start a module like `start_module`: forked from the template if the result is the same."""
    if command[0] != SUPERVISOR or not torchrun.can_fork() or not _is_as_the_template(variables):
        return execute(command, output, variables)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address())
    request = json.dumps([list(command), dict(variables)]).encode()
    connection.sendmsg(
        [request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [output.fileno()]))]
    )
    return ForkedProgram(connection)


# The template has the same variables, whichever test starts it.
_FIRST_VARIABLES = dict(os.environ)


def _is_as_the_template(variables: Mapping[str, str]) -> bool:
    names = filter(READ_AT_IMPORT.match, set(variables) | set(_FIRST_VARIABLES))
    return all(variables.get(name) == _FIRST_VARIABLES.get(name) for name in names)


class Template:
    """The process that forks. `wait_for_request` returns in each child with the child's task."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        Path(path).rename(Path(path).with_name(SOCKET))  # the template accepts requests from here on
        self._connections: dict[int, socket.socket] = {}
        self._woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait_for_request(self) -> tuple[list[str], dict[str, str], int]:
        """Fork a child for each request; return, in the child, the command, variables and output."""
        while True:
            waited_for: list[Any] = [self._listener, self._woken]
            ready, _, _ = select.select(waited_for, [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, MOST_REQUEST_BYTES)
                self._report_ends()
            if self._listener in ready:
                connection, _ = self._listener.accept()
                request, (output,), *_ = socket.recv_fds(connection, MOST_REQUEST_BYTES, 1)
                pid = os.fork()
                if pid == 0:
                    return *json.loads(request), output
                os.close(output)
                self._connections[pid] = connection
                connection.send(str(pid).encode())

    def _report_ends(self) -> None:
        while self._connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._connections.pop(pid) as connection, contextlib.suppress(OSError):
                connection.send(str(status).encode())  # the client may no longer wait


def become(command: Sequence[str], output: int, variables: Mapping[str, str]) -> NoReturn:
    """Turn this forked process into the program that `start_module` would execute."""
    os.setsid()
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, standard)
    # Like exec. The objects that own these descriptors stay referenced below this frame, which never returns.
    os.closerange(FIRST_OWN_DESCRIPTOR, MOST_DESCRIPTORS)
    os.chdir(REPOSITORY)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    atexit._clear()  # drop the exit handlers of the template
    sys.argv = list(command)
    exit_code = 0
    try:
        importlib.import_module(command[0]).main()
    except SystemExit as end:
        if isinstance(end.code, int):
            exit_code = end.code
        elif end.code is not None:
            print(end.code, file=sys.stderr)
            exit_code = 1
    except BaseException:  # noqa: BLE001 - like the interpreter at exit
        traceback.print_exc()
        exit_code = 1
    atexit._run_exitfuncs()
    os._exit(exit_code)


def fork_here(command: Sequence[str], output: BinaryIO, variables: Mapping[str, str]) -> Any:
    """Start torchrun as a child of a forked supervisor; fork it if its ranks are forked too."""
    several = "--nproc-per-node" in command and command[command.index("--nproc-per-node") + 1] != "1"
    if command[0] != fork_server.__name__ or not several:
        return execute(command, output, variables)
    child = subprocess.Popen.__new__(subprocess.Popen)
    child.__dict__.update(args=command, stdin=None, stdout=None, stderr=None, returncode=None)
    child.__dict__.update(_child_created=True, _waitpid_lock=threading.Lock())
    child.pid = os.fork()
    if child.pid == 0:
        become(command, output.fileno(), variables)
    return child


def main() -> None:
    """Run the template until its pytest worker ends."""
    lifeline.die_with_parent(int(sys.argv[1]))
    os.environ["OMP_NUM_THREADS"] = "1"  # like `fork_server` for several ranks, before torch reads it
    for name in (*fork_server.PRELOADED_MODULES, "torch.distributed.run", SUPERVISOR):
        importlib.import_module(name)
    # A forked start is too short to measure. Without a measurement, all cores count as free.
    setattr(threads.FreeCores, "note", lambda _self, _job_cpu_s=0.0: None)  # noqa: B010 - mypy: a method
    torchrun.start_module = fork_here
    command, variables, output = Template(sys.argv[2]).wait_for_request()
    become(command, output, variables)


def serve_page() -> None:
    """Run `app.py`, but start runs through the template."""
    torchrun.start_module = start
    sys.argv = sys.argv[1:]
    runpy.run_path("app.py", run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "app.py":
        serve_page()
    else:
        main()
