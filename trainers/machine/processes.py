"""Processes: titles, resource use, process trees."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainers.machine import facilities

# The first word of the process titles of ranks.
OURS = "ddp:"

_PR_SET_NAME = 15
# Index of a field of /proc/PID/stat, counted from the third field, because the second may contain spaces.
_ARG_START, _ARG_END = 45, 46
_END_OF_NAME = ") "
MAX_SHOWN = 100


def show_rank(run_id: str, rank: int) -> None:
    """Set this process's title to a rank of a run; call it from the main thread.

    If the title is longer than the original command line, the run's name is cut.
    """
    tail = f" rank {rank}".encode()
    # The title has no space: Slurm's proctrack/linuxproc parses /proc/PID/stat up to the first space and
    # would not find the rank, so the ranks of a suspended job would continue to train.
    facilities.prctl(_PR_SET_NAME, f"ddp-rank-{rank}".encode())
    begin, end = _command_line_place()
    room = end - begin - 2  # a zero after the title, and the last byte
    if room < len(tail):
        return  # this system hides the addresses
    head = f"{OURS} {run_id}".encode()[: room - len(tail)]
    ctypes.memmove(begin, (head + tail).ljust(room + 1, b"\0") + b".", end - begin)


def title_of(command_line: Sequence[str]) -> str | None:
    """Return the title of a rank, or None for any other process."""
    return " ".join(command_line)[:MAX_SHOWN] if command_line and command_line[0] == OURS else None


def _command_line_place() -> tuple[int, int]:
    """Return the start and end addresses of this process's command line; (0, 0) if hidden."""
    stat = facilities.read("/proc/self/stat")
    if stat is None:
        return 0, 0
    fields = stat.rpartition(_END_OF_NAME)[2].split()
    return int(fields[_ARG_START]), int(fields[_ARG_END])


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Resources that a process and its children have used, and its current state.

    `wanted_s` is the time its threads ran or waited for a core: on an overloaded machine an active process
    may get little CPU time, but `wanted_s` still grows.
    """

    cpu_s: float
    wanted_s: float
    io_bytes: int
    is_stopped: bool
    waits_for_disk: bool


def sample_effort(pid: int) -> Effort | None:
    """Return a process's effort, or None if it has ended."""
    try:
        root = psutil.Process(pid)
        status = root.status()
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    if status == psutil.STATUS_ZOMBIE:
        return None
    cpu_s, io_bytes = 0.0, 0
    for process in family:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            io_bytes += _io_bytes(process)
    return Effort(
        cpu_s=cpu_s,
        wanted_s=sum(_wanted_s(process.pid) for process in family),
        io_bytes=io_bytes,
        is_stopped=status == psutil.STATUS_STOPPED,
        waits_for_disk=status == psutil.STATUS_DISK_SLEEP
        or any(_waits_for_disk(process.pid) for process in family),
    )


def _io_bytes(process: psutil.Process) -> int:
    """Return the bytes that a process has read and written, on a disk, a network disk or the page cache."""
    if not hasattr(process, "io_counters"):
        return 0
    counters = process.io_counters()
    return int(getattr(counters, "read_chars", 0) + getattr(counters, "write_chars", 0))


def _wanted_s(pid: int) -> float:
    """Return how long a process's threads ran and waited for a core (proc(5), schedstat); 0 if hidden."""
    wanted_ns = 0
    for task in facilities.names_in(f"/proc/{pid}/task"):
        times = facilities.read(f"/proc/{pid}/task/{task}/schedstat")
        with contextlib.suppress(ValueError):
            ran_ns, waited_ns, _ = map(int, (times or "").split())
            wanted_ns += ran_ns + waited_ns
    return wanted_ns / 1e9


def _waits_for_disk(pid: int) -> bool:
    """Return True if a thread of a process is in uninterruptible sleep."""
    for task in facilities.names_in(f"/proc/{pid}/task"):
        stat = facilities.read(f"/proc/{pid}/task/{task}/stat")
        # The state is the first word after the name, which may contain any character.
        if stat is not None and stat.rpartition(")")[2].split()[:1] == ["D"]:
            return True
    return False


UPDATE_EVERY_S = 0.5
KILL_WAIT_S = 3.0
# Longer time limit: after SIGKILL, the driver frees a process's GPU contexts and pinned memory before the
# process ends.
GPU_KILL_WAIT_S = 30.0
KILL_POLL_S = 0.02

# Device files of the drivers of NVIDIA and AMD.
_GPU_FILES = ("/dev/nvidia", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """The known properties of a process; those hidden from this user are empty or None.

    `name` is the program's name, or a rank's title.
    """

    pid: int
    parent_pid: int
    started_unix_s: float
    name: str
    user: str | None
    command_line: tuple[str, ...]
    working_directory: str | None


def all_pids() -> list[int]:
    """Return the ids of all visible processes."""
    return psutil.pids()


def inspect(pid: int) -> ProcessFacts | None:
    """Return the properties of a process, or None if it does not exist or is not visible."""
    names = ["status", "ppid", "create_time", "name", "username", "cmdline", "cwd"]
    try:
        values = psutil.Process(pid).as_dict(names, ad_value=None)
    except psutil.Error:
        return None
    if values["status"] == psutil.STATUS_ZOMBIE:
        return None
    command_line = tuple(values["cmdline"] or ())
    return ProcessFacts(
        pid=pid,
        parent_pid=values["ppid"],
        started_unix_s=values["create_time"],
        name=title_of(command_line) or values["name"],
        user=values["username"],
        command_line=command_line,
        working_directory=values["cwd"],
    )


def is_alive(pid: int) -> bool:
    """Return True if a process of this id is running; a zombie is not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def output_of(pid: int) -> Path | None:
    """Return the file of a process's standard output, or None if it is hidden or not a file."""
    if facilities.are_available():  # a hundredth of the time that psutil takes
        output = facilities.read_link(f"/proc/{pid}/fd/1")
        return None if output is None else Path(output)
    try:
        files = psutil.Process(pid).open_files()
    except psutil.Error:
        return None
    return next((Path(file.path) for file in files if file.fd == 1), None)


def holds_gpu(pid: int) -> bool:
    """Return True if a process has a GPU's driver open; False if that is hidden, or the process is ending."""
    for descriptor in facilities.names_in(f"/proc/{pid}/fd"):
        file = facilities.read_link(f"/proc/{pid}/fd/{descriptor}")  # None: closed by now
        if file is not None and file.startswith(_GPU_FILES):
            return True
    return False


def memory_bytes(pid: int) -> int | None:
    """Return a process's memory with shared pages divided among their users, or None if hidden.

    Sums over processes therefore count each page once, unlike sums of resident sets.
    """
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0
    except (psutil.AccessDenied, AttributeError):  # another user's process; not Linux
        return None


class ProcessTree:
    """A process and its descendants, identified by (pid, start time) so that a reused pid is not included.

    Args:
        with_root: include the root; else only its descendants.
    """

    def __init__(self, root_pid: int, *, with_root: bool = True) -> None:
        self._root_pid = root_pid
        self._with_root = with_root
        self._known: set[psutil.Process] = set()
        self._updated_at = 0.0
        self._gpu_killed_at: float | None = None

    def update(self, *, now: bool = False) -> None:
        """Record the current processes, at most every half second."""
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
        """Return the recorded processes that are still running; zombies are not."""
        alive = []
        for process in self._known:
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except psutil.NoSuchProcess:
                continue
        return alive

    def start_times(self) -> dict[int, float]:
        """Return the start time of each running process, by pid."""
        times = {}
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                times[process.pid] = process.create_time()
        return times

    def terminate(self) -> None:
        """Send SIGTERM to every survivor."""
        for process in self.survivors():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()

    def kill(self) -> None:
        """SIGKILL every survivor and its new children until none is left or the time limit is reached.

        Processes that held a GPU have a longer limit, counted from the first SIGKILL.
        """
        started_at = time.monotonic()
        while True:
            self.update(now=True)
            survivors = self.survivors()
            if not survivors:
                self._gpu_killed_at = None
                return
            if self._gpu_killed_at is None and any(holds_gpu(process.pid) for process in survivors):
                self._gpu_killed_at = started_at
            for process in survivors:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if time.monotonic() > self._kill_deadline(started_at):
                return
            # Not psutil's wait: it would reap the exit code that belongs to the parent process.
            time.sleep(KILL_POLL_S)

    def _kill_deadline(self, started_at: float) -> float:
        deadline = started_at + KILL_WAIT_S
        if self._gpu_killed_at is None:
            return deadline
        return max(deadline, self._gpu_killed_at + GPU_KILL_WAIT_S)
