"""The engine interface and the state of a run."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.commands import Ticket
from trainers.contract.config import Config, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import (
    LOST_MESSAGE,
    NOTHING_SAVED_HINT,
    RESUME_HINT,
    Handle,
    Status,
    StatusError,
)

LAUNCH_GRACE_S = 20.0

# True if a process (launcher, job or supervisor) owns the run of this status; None if that is unknown.
IsAlive = Callable[[RunDirectory, Status], bool | None]


def true_status(run: RunDirectory, is_alive: IsAlive) -> Status:
    """Return the run's actual state.

    A live state is reported only while the engine confirms it or the run is queued; otherwise it is "lost".
    """
    if run.queued.exists() and (waiting := _waiting_status(run, is_alive)) is not None:
        return waiting
    try:
        return _recorded_status(run, is_alive)
    except StatusError as error:
        found = _state_without_status(run)
        return replace(found, error=str(error) if found.state not in events.LIVE_STATES else None)


def _recorded_status(run: RunDirectory, is_alive: IsAlive) -> Status:
    recorded = status_file.read(run.status)
    if recorded is None:
        return _state_without_status(run)
    if recorded.state in events.LIVE_STATES and is_alive(run, recorded) is not False:
        return recorded
    if recorded.state not in events.LIVE_STATES:
        # The lock is held although the status has ended: the run is being trained again from a terminal,
        # and only the event log knows its state.
        newest = events.last_state(run.events) if run.is_locked() else None
        return recorded if newest is None else replace(recorded, state=newest)
    # The owner may have ended between the two reads above. Read again: the last write counts.
    recorded = status_file.read(run.status) or recorded
    if recorded.state not in events.LIVE_STATES:
        return recorded
    last = events.last(run.events)
    if last is not None and last["kind"] == "state" and last["state"] in events.ENDED_STATES:
        # The run wrote its final event, but its status file could no longer be written.
        return replace(recorded, state=last["state"])
    return replace(recorded, state="lost", error=_lost_message(run))


def _waiting_status(run: RunDirectory, is_alive: IsAlive) -> Status | None:
    """Return the status of a run that has a ticket, or None if it has just left the queue."""
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        if recorded is not None and recorded.state in events.LIVE_STATES and is_alive(run, recorded):
            return recorded  # its engine is about to take the ticket
    return Status(state="queued") if run.queued.exists() else None


def _state_without_status(run: RunDirectory) -> Status:
    """Return the state of a run without a status file: just created, or started from a terminal."""
    newest = events.last_state(run.events)
    if run.is_locked():
        return Status(state=newest or "starting")
    if newest is not None:
        is_lost = newest in events.LIVE_STATES
        return Status(state="lost", error=_lost_message(run)) if is_lost else Status(state=newest)
    age_s = time.time() - run.config.stat().st_mtime if run.config.exists() else LAUNCH_GRACE_S
    # abs(): after the clock was set back, the file's time is in the future and would count as new for hours.
    if abs(age_s) < LAUNCH_GRACE_S:
        return Status(state="queued")
    return Status(state="lost", error=_lost_message(run))


def _lost_message(run: RunDirectory) -> str:
    is_saved = any(run.checkpoints.glob("step_*/manifest.json"))
    return f"{LOST_MESSAGE} {RESUME_HINT if is_saved else NOTHING_SAVED_HINT}"


THIS_MACHINE = "this machine"


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What an engine can give one run, as currently known.

    Attributes:
        num_gpus: Per usable node.
        most_gpus_per_run: Per node; None: all. A run gets one MIG instance at most.
        gpu_memory_bytes, memory_bytes: Of the smallest GPU or MIG instance, and of a node.
        gpu_capability: The lowest compute capability, such as (7, 5).
        gpu_free_bytes: Per GPU, in no order; empty if unknown.
        cpu_has_bf16: True if the CPU multiplies bf16 natively; None if unknown.
        place: Noun phrase for messages, such as "this machine".
        has_more_ranks_than_cores: True if CPU ranks may share a core.
    """

    num_nodes: int
    num_gpus: int
    num_cores: int
    most_gpus_per_run: int | None = None
    gpu_names: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    gpu_capability: tuple[int, int] | None = None
    gpu_free_bytes: tuple[int, ...] = ()
    memory_bytes: int | None = None
    cpu_has_bf16: bool | None = None
    place: str = THIS_MACHINE
    has_more_ranks_than_cores: bool = True


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of a field and its label in a list."""

    value: str
    words: str


@dataclass(frozen=True, kw_only=True)
class AskedField:
    """How a form offers a field that selects where a run trains.

    Attributes:
        choices: All allowed values; empty: free text.
        is_several: True if any number of choices may be selected, joined by newlines.
    """

    default: Any = None
    choices: tuple[Choice, ...] = ()
    is_several: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineJob:
    """A job of the current user in an engine's own queue, started by this page or not.

    Attributes:
        number: The engine's job ID.
        handle: As in the status file of a run.
        state, why: Texts for display; `why` is the reason for waiting, or empty.
        is_waiting: True if the job has not started.
        place, num_waiting: Position (1 is next) among the jobs that wait for the same nodes, and their
            number; None if unknown.
        starts_unix_s: When the job started, or the estimated start of a waiting job.
    """

    number: str
    handle: Handle
    name: str
    state: str
    is_waiting: bool
    why: str
    where: str
    nodes: str
    num_nodes: int
    place: int | None
    num_waiting: int | None
    submitted_unix_s: float | None
    starts_unix_s: float | None


@dataclass(frozen=True, kw_only=True)
class EngineQueue:
    """The current user's part of an engine's own queue.

    Attributes:
        name: Name of the engine for messages.
        silent_since_unix_s: When the engine stopped answering; None while it answers.
    """

    name: str
    jobs: tuple[EngineJob, ...]
    silent_since_unix_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """State of one host of an engine. None means unknown.

    Attributes:
        run_id: The run that trains on it; empty: none.
        gpu_users: Names of the users with processes on its GPUs.
        torch: Version of torch on the host.
        code: Checksum of this project's code on the host.
        clock_off_s: Lower bound of how far its clock is ahead of this machine's.
        sees_runs: True if it sees the folder of the runs; None also if it does not need to.
        problems: Messages, each with a remedy.
    """

    name: str
    is_reachable: bool
    run_id: str = ""
    num_cores: int | None = None
    memory_bytes: int | None = None
    gpu_names: tuple[str, ...] = ()
    gpu_users: tuple[str, ...] = ()
    torch: str | None = None
    code: str | None = None
    clock_off_s: float | None = None
    sees_runs: bool | None = None
    problems: tuple[str, ...] = ()

    def with_problems(self, problems: Sequence[str]) -> HostReport:
        """Return a copy with additional problems."""
        return replace(self, problems=(*self.problems, *problems))


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """Measured all-reduce performance between two hosts of an engine.

    Attributes:
        hosts: Names of the two hosts.
        bytes_per_s: Gradient throughput of the largest tensor; None: not measured.
        latency_s: Time of the smallest tensor.
        problem: Message with a remedy; empty: none.
    """

    hosts: tuple[str, str]
    backend: str = ""
    bytes_per_s: float | None = None
    latency_s: float | None = None
    problem: str = ""


# An engine must take ownership of a run within this time; otherwise the start has failed.
HANDSHAKE_S = 20.0


class StartError(RuntimeError):
    """A run failed to start; the message gives the reason."""


class Launch(ABC):
    """One start of a run, from the request to its end."""

    @abstractmethod
    def wait_until_owned(self) -> None:
        """Wait until the engine owns the run; from then on the status file records its state.

        Raises:
            StartError: If the engine cannot take the run.
        """

    @abstractmethod
    def wait_for_end(self) -> None:
        """Wait until no process of this start remains."""


class Engine(ABC):
    """One way to run jobs. Thread-safe."""

    name: ClassVar[str]
    # The engine schedules runs itself, so the page's queue submits each run immediately.
    has_queue: ClassVar[bool] = False
    # Runs are submitted as a script.
    has_scripts: ClassVar[bool] = False
    # Where a submitted run waits, as a phrase for messages.
    waits_where: ClassVar[str] = "in the cluster's queue"
    # The engine knows its hosts by name and reports on them.
    has_hosts: ClassVar[bool] = False
    # The engine can kill a single rank, to demonstrate how the other ranks react.
    kills_ranks: ClassVar[bool] = False
    # The engine runs users' own scripts.
    runs_own_scripts: ClassVar[bool] = False

    @abstractmethod
    def capacity(self) -> Capacity:
        """Return the current capacity for a run."""

    @abstractmethod
    def check(self, config: Config) -> list[Problem]:
        """Return the problems of a configuration on this engine, before anything is started."""

    @abstractmethod
    def start(self, run: RunDirectory, ticket: Ticket) -> Launch:
        """Start a run with the options of its ticket.

        Raises:
            OSError: If its files cannot be written.
            ValueError: If it may not be started.
        """

    @abstractmethod
    def is_alive(self, run: RunDirectory, handle: Handle) -> bool | None:
        """True if a process owns the run; None if that is unknown."""

    @abstractmethod
    def stop(self, run: RunDirectory, *, save: bool, why: str = "") -> str:
        """End a live run, after a checkpoint if `save` is set, and return the command's id.

        Returns immediately. Processes that ignore the command are killed after the engine's grace period.

        Raises:
            OSError: If the run's folder cannot be written.
            ValueError: If it may not be stopped.
        """

    @abstractmethod
    def kill(self, run: RunDirectory) -> None:
        """Kill every process of a live run without saving. The status is final when this returns."""

    def kill_rank(self, run: RunDirectory, rank: int) -> None:
        """Kill the process of one rank (SIGKILL). The run then fails as if the rank had crashed.

        Raises:
            ValueError: If this engine does not support it, or the rank has no process.
            OSError: If the run's folder cannot be written.
        """
        del run, rank
        raise ValueError(
            f"a single rank can be killed from here only on this machine; this run is on {self.name}"
        )

    @abstractmethod
    def logs(self, run: RunDirectory) -> list[Path]:
        """Return the log files of the run's processes, rank 0 first."""

    @abstractmethod
    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        """Return the equivalent shell command, to be run in the project's folder.

        It creates a new run in `run_dir`; with `resume_step` it resumes the existing one.
        """

    def script_of(self, run: RunDirectory) -> str | None:
        """Return the script that submitted the run, or None."""
        del run
        return None

    def is_waiting(self, handle: Handle) -> bool:
        """True if a submitted run waits to be started or restarted."""
        del handle
        return False

    # For engines with more than one place to run. Most have one.

    def capacity_for(self, config: Config) -> Capacity:
        """Return the current capacity for a run of this configuration, which may name a place."""
        del config
        return self.capacity()

    def asks(self) -> Mapping[str, AskedField]:
        """Return the fields, by name, with which a user selects where a run trains."""
        return {}

    def choices(self, config: Config) -> Mapping[str, tuple[Choice, ...]]:
        """Return the current choices of those fields whose choices change over time."""
        del config
        return {}

    def script(self, config: Config, run_dir: Path, resume_step: int | None = None) -> str | None:
        """Return the job script that would be submitted for a run, or None if the engine uses none.

        Raises:
            ValueError: If a value cannot be written in a script.
        """
        del config, run_dir, resume_step
        return None

    def why_it_waits(self, handle: Handle) -> str | None:
        """Return why a submitted run waits, as text; None if runs never wait for this engine."""
        del handle
        return None

    def silence(self, handle: Handle) -> str | None:
        """Return since when a live run's processes have not reported, as text; None if they report."""
        del handle
        return None

    def detail(self, handle: Handle) -> str | None:
        """Return a short reason why a live run's processes are suspended; None if they are not."""
        del handle
        return None

    def ended_status(self, run: RunDirectory, status: Status) -> Status:
        """Return the status of an ended run, completed with what the engine knows about the end.

        Args:
            status: `lost` if the run recorded no end.
        """
        del run
        return status

    def queue(self) -> EngineQueue | None:
        """Return the current user's jobs in the engine's queue; None if it has no queue."""
        return None

    def place_of(self, handle: Handle) -> str | None:
        """Return a run's position in the engine's queue, as text; None if unknown."""
        del handle
        return None

    def starts_at(self, handle: Handle) -> float | None:
        """Return the estimated start of a waiting run (Unix time in s); None if unknown."""
        del handle
        return None

    def host_reports(self, runs_dir: Path) -> Sequence[HostReport] | None:
        """Return the state of each host and any mismatch between them; None if the engine has no hosts.

        Takes seconds.

        Raises:
            OSError: If the folder of the runs is not writable.
        """
        del runs_dir
        return None

    def links(self) -> Sequence[tuple[str, str]]:
        """Return the pairs of hosts that `measure_link` accepts."""
        return ()

    def measure_link(self, first: str, second: str) -> LinkReport:
        """Measure real all-reduces between two hosts. Takes seconds.

        Raises:
            ValueError: If the engine has no such hosts.
        """
        raise ValueError(f"{self.name} names no machines, so none that are {first} and {second}")

    # For engines that keep processes warm, so that a run starts sooner. Most keep none.

    def begin(self) -> None:  # noqa: B027
        """Start keeping processes ready for the expected runs, until `close`."""

    def close(self) -> None:  # noqa: B027
        """Release everything kept ready."""

    def expect(self, num_ranks: int) -> None:  # noqa: B027
        """Note that a run with this number of ranks may start soon."""

    def note_running(self, is_anything_running: bool) -> None:  # noqa: B027
        """Note whether runs are active. Active runs get the entire machine."""

    def kept_ready(self) -> Mapping[str, int] | None:
        """Return the number of warm ranks and their total memory in bytes; None if no rank is warm."""
        return None

    def own_processes(self) -> Mapping[int, float]:
        """Return the processes of this machine that belong to no run yet: pid to start time."""
        return {}
