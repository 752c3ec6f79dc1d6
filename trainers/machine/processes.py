"""Processes as psutil sees them: who they are, what they hold, and the tree of one launch."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainers.machine import process_title

UPDATE_EVERY_S = 0.5
KILL_WAIT_S = 3.0
# After SIGKILL the driver takes a process's GPU contexts and pinned memory apart before it is gone.
GPU_KILL_WAIT_S = 30.0
KILL_POLL_S = 0.02

# NVIDIA's driver, AMD's.
_GPU_FILES = ("/dev/nvidia", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """What can be known of a process; what is hidden from this user is empty or None.

    `name` is that of its program, or of a rank its title.
    """

    pid: int
    parent_pid: int
    started_unix_s: float
    name: str
    user: str | None
    command_line: tuple[str, ...]
    working_directory: str | None


def all_pids() -> list[int]:
    """Return the ids of all processes that can be seen from here."""
    return psutil.pids()


def names_in(folder: str) -> list[str]:
    """Return the names in a folder of /proc; none where its process has gone, or it is hidden.

    `Path.glob` raises where it goes between two of its steps (until Python 3.13), and whoever asks in a loop
    meets that moment in the end.
    """
    try:
        return os.listdir(folder)
    except OSError:
        return []


def inspect(pid: int) -> ProcessFacts | None:
    """Return what can be known of a process; None when it is not there, or not to be seen from here."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command_line = _command_line(process)
            return ProcessFacts(
                pid=pid,
                parent_pid=process.ppid(),
                started_unix_s=process.create_time(),
                name=process_title.title_of(command_line) or process.name(),
                user=_user(process),
                command_line=command_line,
                working_directory=_working_directory(process),
            )
    except psutil.Error:
        return None


def is_alive(pid: int) -> bool:
    """Tell whether there is a process of this id that has not ended; a zombie has."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _user(process: psutil.Process) -> str | None:
    try:
        return process.username()
    except (psutil.AccessDenied, KeyError):
        return None


def _command_line(process: psutil.Process) -> tuple[str, ...]:
    try:
        return tuple(process.cmdline())
    except psutil.AccessDenied:
        return ()


def _working_directory(process: psutil.Process) -> str | None:
    try:
        return process.cwd()
    except psutil.AccessDenied:
        return None


def output_of(pid: int) -> Path | None:
    """Return the file a process's standard output goes to; None where that is hidden, or no file."""
    try:
        return Path(f"/proc/{pid}/fd/1").readlink()
    except OSError:
        return None


def holds_gpu(pid: int) -> bool:
    """Tell whether a process has a GPU's driver open; no where that is hidden, or it ends already."""
    for descriptor in names_in(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()).startswith(_GPU_FILES):
                return True
    return False


def memory_bytes(pid: int) -> int | None:
    """Return a process's memory, pages it shares counted in equal parts; None where that is hidden.

    Adding these up over processes counts no page twice, as their resident sets would.
    """
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0
    except (psutil.AccessDenied, AttributeError):  # not ours; not Linux
        return None


class ProcessTree:
    """A process and all below it, remembered by (pid, start time) so that a reused pid is not ours.

    Args:
        with_root: the root belongs to it; else only what is below it does.
    """

    def __init__(self, root_pid: int, *, with_root: bool = True) -> None:
        self._root_pid = root_pid
        self._with_root = with_root
        self._known: set[psutil.Process] = set()
        self._updated_at = 0.0
        self._gpu_killed_at: float | None = None

    def update(self, *, now: bool = False) -> None:
        """Remember who is there, at most every half second."""
        if not now and time.monotonic() - self._updated_at < UPDATE_EVERY_S:
            return
        self._updated_at = time.monotonic()
        try:
            root = psutil.Process(self._root_pid)
            self._known.update(root.children(recursive=True))
            if self._with_root:
                self._known.add(root)
        except psutil.NoSuchProcess:
            return

    def survivors(self) -> list[psutil.Process]:
        """Return those of them that still run; a zombie does not."""
        alive = []
        for process in self._known:
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except psutil.NoSuchProcess:
                continue
        return alive

    def start_times(self) -> dict[int, float]:
        """Return when each of those that still run was started, by its number."""
        found = {}
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                found[process.pid] = process.create_time()
        return found

    def kill(self) -> None:
        """SIGKILL every survivor, and what it started meanwhile, until none is left or it takes too long.

        What held a GPU may take longer, counted from the first SIGKILL.
        """
        began = time.monotonic()
        while True:
            self.update(now=True)
            survivors = self.survivors()
            if not survivors:
                self._gpu_killed_at = None
                return
            if self._gpu_killed_at is None and any(holds_gpu(process.pid) for process in survivors):
                self._gpu_killed_at = began
            for process in survivors:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if time.monotonic() > self._kill_deadline(began):
                return
            # Not psutil's wait: it would take the exit code that belongs to whoever started the process.
            time.sleep(KILL_POLL_S)

    def _kill_deadline(self, began: float) -> float:
        deadline = began + KILL_WAIT_S
        if self._gpu_killed_at is None:
            return deadline
        return max(deadline, self._gpu_killed_at + GPU_KILL_WAIT_S)
