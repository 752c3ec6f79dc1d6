"""The page's background threads, load of other programs, and the number of threads per rank."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from trainers.machine import facilities
from trainers.machine.host import num_cores
from trainers.machine.os_errors import explain

log = logging.getLogger(__name__)

# A pass takes milliseconds, or a few seconds if it waits for another page's lock.
STUCK_AFTER_S = 30.0
COMPLAIN_EVERY_S = 60.0


_lock = threading.Lock()


def run_once(name: str, do: Callable[[], None]) -> None:
    """Call a function in a daemon thread, unless a thread of this name is alive. Returns immediately."""
    with _lock:
        if all(thread.name != name for thread in threading.enumerate()):
            threading.Thread(target=do, name=name, daemon=True).start()


class PeriodicThread:
    """Calls `one_pass` repeatedly in a thread; it returns the seconds until the next call."""

    def __init__(self, name: str, one_pass: Callable[[], float], rest_after_error_s: float = 1.0) -> None:
        self._name = name
        self._one_pass = one_pass
        self._rest_after_error_s = rest_after_error_s
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._error: str | None = None
        self._began_at: float | None = None
        self._logged_at = float("-inf")

    @property
    def is_alive(self) -> bool:
        """True if the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def trouble(self) -> str | None:
        """Text of the problem that prevents the thread from working, or None."""
        if self._thread is None or self._is_closed:
            return None
        if not self._thread.is_alive():
            return "The thread for this work has ended. Restart the page."
        began_at = self._began_at
        if began_at is not None and (takes_s := time.monotonic() - began_at) > STUCK_AFTER_S:
            return f"The current pass has taken {takes_s:.0f} seconds: a disk may hang."
        return self._error

    def begin(self) -> None:
        """Start the thread, which runs until `close`."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Start the next pass immediately."""
        self._wake.set()

    def close(self) -> None:
        """End the thread after the current pass."""
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            self._began_at = time.monotonic()
            try:
                rest_s = self._one_pass()
                self._error = None
            except Exception as error:  # noqa: BLE001 - this thread must survive any error
                self._record_error(error)
                rest_s = self._rest_after_error_s
            self._began_at = None
            self._wake.wait(rest_s)

    def _record_error(self, error: Exception) -> None:
        if time.monotonic() - self._logged_at > COMPLAIN_EVERY_S:
            self._logged_at = time.monotonic()
            log.error("%s: a pass failed, trying again: %s", self._name, error, exc_info=error)
        has_message = isinstance(error, (OSError, ValueError)) and str(error)
        # Messages of other errors are not meant for users and appear only in the log.
        self._error = (
            explain(error) if has_message else f"An error of the page itself ({type(error).__name__})."
        )


@dataclass(frozen=True, kw_only=True)
class OtherLoad:
    """Load of the cores that this process may use, in percent of their total capacity.

    Attributes:
        others_percent: busy with programs other than the job.
        idle_percent: idle.
    """

    others_percent: float
    idle_percent: float


class OtherLoadReader:
    """Measures the load of other programs since the last call; the first call only starts the measurement."""

    def __init__(self) -> None:
        self._previous: tuple[float, float, float] | None = None

    def read(self, job_cpu_s: float) -> OtherLoad | None:
        """Return the load since the last call, or None if it cannot be read.

        Args:
            job_cpu_s: CPU time in seconds that the job's processes on this machine have used so far.
        """
        previous, self._previous = self._previous, (*_times_of_our_cores(), job_cpu_s)
        if previous is None:
            return None
        busy_s, idle_s, job_s = (now - then for now, then in zip(self._previous, previous, strict=True))
        all_s = busy_s + idle_s
        if all_s <= 0 or job_s < 0:
            return None
        others_s = max(0.0, busy_s - job_s)
        return OtherLoad(
            others_percent=round(100 * others_s / all_s, 1), idle_percent=round(100 * idle_s / all_s, 1)
        )


def own_cpu_s() -> float:
    """Return the CPU time of this process, its threads and its loader workers, in seconds."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        try:
            times = psutil.Process(child.pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _times_of_our_cores() -> tuple[float, float]:
    """Return for how long these cores were busy and idle since the machine started, in seconds."""
    cores = psutil.cpu_times(percpu=True)
    ours = facilities.cores() or range(len(cores))
    idle = busy = 0.0
    for number, core in enumerate(cores):
        if number not in ours:
            continue
        idle += core.idle + getattr(core, "iowait", 0.0)
        # A guest's time is included in user. Stolen time went to other virtual machines.
        names = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")
        busy += sum(getattr(core, name, 0.0) for name in names)
    return busy, idle


GIVEN = "OMP_NUM_THREADS"
# Variable that the process that starts the ranks sets after it has measured the machine's load.
FREE_CORES = "TRAINERS_FREE_CORES"
MOST = 1024
# Maximum number of threads of a rank on a GPU. It only copies batches: a few threads reach the full memory
# bandwidth, which ranks of other runs also need.
MOST_BESIDE_GPU = 8
# Load that counts as idle. On an otherwise idle machine, the number of threads must not vary: it determines
# the order of sums, so two runs with one seed would differ in the last digits.
NEARLY_ALL = 0.8
MEASURE_S = 5.0


class FreeCores:
    """Measures the cores that other programs leave free, from its creation on."""

    def __init__(self, job_cpu_s: float = 0.0) -> None:
        self._reader = OtherLoadReader()
        self._reader.read(job_cpu_s)
        self._next_s = -math.inf

    def note(self, job_cpu_s: float = 0.0) -> None:
        """Write the free cores since the last measurement into the environment, for the ranks.

        Later measurements cover at least `MEASURE_S`, because a shorter interval is not representative.
        """
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + MEASURE_S
        load = self._reader.read(job_cpu_s)
        if load is not None:
            os.environ[FREE_CORES] = f"{num_cores() * (1 - load.others_percent / 100):.2f}"


def choose(num_ranks: int, cores: int, *, max_threads: int | None = None, recorded: int | None = None) -> int:
    """Return the number of threads for each rank of this machine.

    OMP_NUM_THREADS has priority. A resumed run keeps its recorded number, because another number changes the
    order of sums. Otherwise the free cores are divided among the ranks.

    Args:
        cores: the cores that the ranks may use.
        max_threads: the queue's limit per rank, which is not below the recorded number of a resumed run.
        recorded: the number of threads in the run's checkpoint.
    """
    if (requested := threads_from_environment()) is not None:
        return requested
    if recorded is not None and recorded <= (cores if max_threads is None else min(cores, max_threads)):
        return recorded
    free = min(cores, round(_free_cores(cores)))
    if free >= cores * NEARLY_ALL:
        free = cores
    return max(1, min(free // num_ranks, MOST if max_threads is None else max_threads))


def threads_from_environment() -> int | None:
    """Return the OMP_NUM_THREADS that a user has set for this process, or None.

    torchrun sets it to 1 for several ranks if it is unset. The environment of the torchrun process shows
    whether the user or torchrun set it (Linux).
    """
    value = os.environ.get(GIVEN)
    if value is None:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        started_with = _environment_of(os.getppid())
        if started_with is not None:
            value = started_with.get(GIVEN)
        elif value == "1" and os.environ.get("LOCAL_WORLD_SIZE") != "1":
            return None
    first = (value or "").split(",")[0].strip()
    return min(MOST, int(first)) if first.isdecimal() and int(first) > 0 else None


def _free_cores(cores: int) -> float:
    try:
        return float(os.environ.get(FREE_CORES, ""))
    except ValueError:
        return cores


def _environment_of(pid: int) -> dict[str, str] | None:
    try:
        variables: dict[str, str] = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return None
    return variables
