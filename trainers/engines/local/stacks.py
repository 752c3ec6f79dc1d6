"""Stacks of the ranks' processes, and the interface to the ranks of a run."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.heartbeats import STACKS_SIGNAL, Heartbeat
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import HeartbeatMemory
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment, processes
from trainers.machine.os_errors import explain
from trainers.machine.processes import Effort

PY_SPY_TIMEOUT_S = 4.0
TRIES = 3
ANSWER_TIMEOUT_S = 3.0
STACK_POLL_S = 0.1

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
# Frames of a rank that waits for other ranks: in a collective, in backward, which contains collectives, or in
# a call that waits for the GPU, whose queued work contains collectives.
_SHARED_ALL_REDUCE = "/trainers/parallel/shared_all_reduce.py"
_WAITING_FILES = ("/torch/distributed/", _SHARED_ALL_REDUCE)
# DDP broadcasts buffers in `_pre_forward`, in torch/nn/parallel.
_WAITING_FUNCTIONS = ("_engine_run_backward", "_pre_forward")
_GPU_FILES, _GPU_FUNCTIONS = "/torch/cuda/", ("synchronize", "elapsed_time")
# Reads from the device are compiled code and have no Python frame; the source line reveals them.
_DEVICE_READ = re.compile(r"\.(item|tolist|cpu|synchronize)\(")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/")
_WATCH = f"{REPOSITORY}/trainers/watch/"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.removeprefix(f'{REPOSITORY}/')}:{self.line}, {self.function}"

    @property
    def is_waiting(self) -> bool:
        is_for_gpu = _GPU_FILES in self.file and self.function in _GPU_FUNCTIONS
        is_known = any(part in self.file for part in _WAITING_FILES) or self.function in _WAITING_FUNCTIONS
        return is_known or is_for_gpu

    @property
    def reads_device(self) -> bool:
        """True if its source line reads from the device, which waits for all queued work."""
        return _DEVICE_READ.search(linecache.getline(self.file, self.line)) is not None

    @property
    def is_ours(self) -> bool:
        """True if its code belongs neither to Python nor to a library, nor to the hooks around a script."""
        # A script may use another interpreter, with its own standard library.
        if _LIBRARY.search(self.file) or self.file.startswith((sysconfig.get_path("stdlib"), "<")):
            return False
        return not self.file.startswith(_WATCH)


@dataclass(frozen=True, kw_only=True)
class Thread:
    """The stack of one thread, innermost frame first."""

    name: str
    frames: tuple[Frame, ...]

    @property
    def is_waiting(self) -> bool:
        """True if it waits for other ranks: a waiting call has only library frames below it."""
        for number, frame in enumerate(self.frames):
            if frame.is_waiting or (number == 0 and frame.reads_device):
                return True
            if frame.is_ours:
                return False
        return False

    def text(self) -> str:
        """Return the stack in the order of a traceback, innermost call last."""
        lines = [
            f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in self.frames[::-1]
        ]
        return "\n".join([f"{self.name}, most recent call last:", *lines])


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """The threads of one rank; `source` names how they were read, or why they were not."""

    threads: tuple[Thread, ...]
    source: str

    @property
    def blocking_thread(self) -> Thread | None:
        """Return the thread that training waits for: the main thread, or one that writes a checkpoint."""
        main_thread = self.threads[0] if self.threads else None
        if main_thread is not None and any(frame.function == "join" for frame in main_thread.frames[:3]):
            return next((thread for thread in self.threads if _is_saving(thread)), main_thread)
        return main_thread

    @property
    def location(self) -> Frame | None:
        """Return the innermost frame of this project or a plugin."""
        frames = self.blocking_thread.frames if self.blocking_thread else ()
        return next((frame for frame in frames if frame.is_ours), frames[0] if frames else None)

    @property
    def is_waiting(self) -> bool:
        """True if training waits for the other ranks."""
        return self.blocking_thread is not None and self.blocking_thread.is_waiting

    @property
    def is_in_gradients(self) -> bool:
        """True if it is in the gradient all-reduce in shared memory, which torch does not record."""
        return self.location is not None and self.location.file.endswith(_SHARED_ALL_REDUCE)

    def text(self) -> str:
        """Return the stacks of all threads, as text."""
        return "\n\n".join([self.source, *(thread.text() for thread in self.threads)])


def read(pid: int, rank_log: Path) -> Stacks:
    """Return the stacks of a rank's process: by py-spy, otherwise by faulthandler inside the rank."""
    threads, problem = _by_py_spy(pid)
    if threads:
        return Stacks(threads=threads, source="Read by py-spy.")
    threads = _by_faulthandler(pid, rank_log)
    if threads:
        source = f"Reported by the rank itself (py-spy failed: {problem})."
        return Stacks(threads=threads, source=source)
    return Stacks(
        threads=(), source=f"The rank's stacks could not be read: {problem}, and the rank does not answer."
    )


def read_at_once(pid: int) -> Stacks | None:
    """Return the stacks of a rank's process without its cooperation; None if py-spy cannot read them."""
    threads, _ = _by_py_spy(pid)
    return Stacks(threads=threads, source="Read by py-spy.") if threads else None


def _is_saving(thread: Thread) -> bool:
    return any(frame.file.endswith("checkpoint_writer.py") for frame in thread.frames)


def _by_py_spy(pid: int) -> tuple[tuple[Thread, ...], str]:
    local_program = Path(sys.executable).with_name("py-spy")
    program = str(local_program) if local_program.exists() else shutil.which("py-spy")
    if program is None:
        return (), "py-spy is not installed"
    problem = ""
    for _ in range(TRIES):  # the process keeps running, and reading fails if a stack changes meanwhile
        command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        try:
            result = subprocess.run(
                command,
                env=environment.for_a_child(),
                capture_output=True,
                text=True,
                timeout=PY_SPY_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return (), explain(error)
        if result.returncode == 0:
            return parse_py_spy(result.stdout), ""
        problem = (result.stderr.strip().splitlines() or ["py-spy printed no error"])[-1][:200]
    return (), problem


def parse_py_spy(text: str) -> tuple[Thread, ...]:
    """Parse the output of py-spy; main thread first."""
    threads = [
        Thread(
            name=str(raw.get("thread_name") or "a thread"),
            frames=tuple(
                # py-spy reports qualified names (Thread.join), faulthandler does not.
                Frame(file=frame["filename"], line=frame["line"], function=frame["name"].rpartition(".")[2])
                for frame in raw["frames"]
            ),
        )
        for raw in json.loads(text)
    ]
    return tuple(sorted(threads, key=lambda thread: thread.name != "MainThread"))


def _by_faulthandler(pid: int, rank_log: Path) -> tuple[Thread, ...]:
    """Signal the rank to write its stacks to its log, and read them there."""
    try:
        start = rank_log.stat().st_size
        os.kill(pid, STACKS_SIGNAL)
    except OSError:
        return ()
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    size = start
    while time.monotonic() < deadline:
        time.sleep(STACK_POLL_S)
        with contextlib.suppress(OSError):
            before, size = size, rank_log.stat().st_size
            # Complete when the log has grown and then kept its size for one poll.
            if size > start and size == before:
                break
    with rank_log.open("rb") as log:
        log.seek(start)
        answer = log.read(1024 * 1024).decode("utf-8", errors="replace")
    return parse_faulthandler(answer.splitlines())


def parse_faulthandler(lines: Sequence[str]) -> tuple[Thread, ...]:
    """Parse the output of Python's faulthandler, which lists the main thread last; main thread first."""
    threads: list[list[Frame]] = []
    for line in lines:
        if _THREAD.match(line):
            threads.append([])
        elif threads and (match := _FRAME.match(line)):
            frame = Frame(file=match["file"], line=int(match["line"]), function=match["function"])
            threads[-1].append(frame)
    names = ["MainThread", *(f"another thread ({number})" for number in range(1, len(threads)))]
    return tuple(
        Thread(name=name, frames=tuple(frames)) for name, frames in zip(names, reversed(threads), strict=True)
    )


class Ranks:
    """The ranks of a run on this machine. `RanksOfNodes` has those of several machines."""

    num_machines = 1

    def __init__(self, run: RunDirectory, heartbeat_memory: HeartbeatMemory) -> None:
        self.run = run
        self.heartbeat_memory = heartbeat_memory
        self.num_ranks = heartbeat_memory.num_ranks

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return a rank's latest heartbeat; None before its first."""
        return self.heartbeat_memory.read(rank)

    def effort(self, rank: int) -> Effort | None:
        """Return the resources that a rank's process has used so far; None if it has ended."""
        heartbeat = self.heartbeat_memory.read(rank)
        return None if heartbeat is None else processes.sample_effort(heartbeat.pid)

    def ask(self) -> None:
        """Ask every rank for the collectives it is in."""
        self.heartbeat_memory.ask()

    def answer(self, rank: int) -> bytes | None:
        """Return a rank's answer to the latest request; None if it has not answered."""
        return self.heartbeat_memory.answer(rank)

    def stacks(self, rank: int) -> Stacks:
        """Return a rank's stacks, after the latest request. Takes seconds."""
        heartbeat = self.heartbeat_memory.read(rank)
        if heartbeat is None:
            return Stacks(threads=(), source="The rank has not started.")
        return read(heartbeat.pid, self.run.rank_log(rank))

    def stacks_at_once(self, rank: int) -> Stacks | None:
        """Return a rank's stacks without its cooperation; None if they cannot be read."""
        heartbeat = self.heartbeat_memory.read(rank)
        return None if heartbeat is None else read_at_once(heartbeat.pid)

    def host(self, rank: int) -> str:
        """Return the name of a rank's machine; empty if there is only one."""
        del rank
        return ""

    def lost_node(self) -> str:
        """Return the machine that has stopped reporting, as text; empty if none has."""
        return ""

    def terminate_elsewhere(self) -> None:
        """Make the other machines send SIGTERM to their ranks."""

    def network_failure(self) -> str:
        """Return the machines that cannot reach each other, as text; empty if none are known."""
        return ""

    def kill_reason(self, rank: int) -> str:
        """Return why the launcher of a rank's machine has killed the rank; empty if it has not."""
        del rank
        return ""
