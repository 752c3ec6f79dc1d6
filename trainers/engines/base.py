"""What an engine offers, and the state of a run as reported."""

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

# Tells whether somebody looks after the run of this status; None where that cannot be found out.
IsAlive = Callable[[RunDirectory, Status], bool | None]


def true_status(run: RunDirectory, is_alive: IsAlive) -> Status:
    """Return the run's true state: a live one only while its engine says so, or it waits."""
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
        # Locked all the same: somebody trains it again by hand, and only the events know.
        newest = events.last_state(run.events) if run.is_locked() else None
        return recorded if newest is None else replace(recorded, state=newest)
    # Whoever looked after it may have ended between the two reads: what was written last is what counts.
    recorded = status_file.read(run.status) or recorded
    if recorded.state not in events.LIVE_STATES:
        return recorded
    said = events.last(run.events)
    if said is not None and said["kind"] == "state" and said["state"] in events.ENDED_STATES:
        # The run had its last word; only the status could not be written any more.
        return replace(recorded, state=said["state"])
    return replace(recorded, state="lost", error=_lost_message(run))


def _waiting_status(run: RunDirectory, is_alive: IsAlive) -> Status | None:
    """Return the status of a run with a ticket; None when it was taken from the line a moment ago."""
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        if recorded is not None and recorded.state in events.LIVE_STATES and is_alive(run, recorded):
            return recorded  # its engine is about to take the ticket
    return Status(state="queued") if run.queued.exists() else None


def _state_without_status(run: RunDirectory) -> Status:
    """A run that no engine has written down: just created, or started by hand."""
    newest = events.last_state(run.events)
    if run.is_locked():
        return Status(state=newest or "starting")
    if newest is not None:
        is_lost = newest in events.LIVE_STATES
        return Status(state="lost", error=_lost_message(run)) if is_lost else Status(state=newest)
    age_s = time.time() - run.config.stat().st_mtime if run.config.exists() else LAUNCH_GRACE_S
    # A file from the future (the clock was set back) is not new for ever.
    if abs(age_s) < LAUNCH_GRACE_S:
        return Status(state="queued")
    return Status(state="lost", error=_lost_message(run))


def _lost_message(run: RunDirectory) -> str:
    is_saved = any(run.checkpoints.glob("step_*/manifest.json"))
    return f"{LOST_MESSAGE} {RESUME_HINT if is_saved else NOTHING_SAVED_HINT}"


THIS_MACHINE = "this machine"


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What an engine can give one run, as far as it is known now.

    Attributes:
        num_gpus: on each node that can be used.
        most_gpus_per_run: of each node; None: all. Of MIG instances a run gets one.
        gpu_memory_bytes, memory_bytes: of the smallest GPU or MIG instance, and of a node.
        gpu_capability: the lowest compute capability, such as (7, 5).
        gpu_free_bytes: of each GPU, in no order; empty where it is not known.
        cpu_has_bf16: the CPU multiplies bf16 numbers itself; None: not known.
        place: what has them, for a sentence.
        has_more_ranks_than_cores: CPU ranks may share a core.
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
    """One value of a field, and what is said of it in a list to choose from."""

    value: str
    words: str


@dataclass(frozen=True, kw_only=True)
class AskedField:
    """How a form asks for a field that says where a run trains.

    Attributes:
        choices: all that can be chosen; none: anything may be typed.
        is_several: any number of the choices, joined by line ends.
    """

    default: Any = None
    choices: tuple[Choice, ...] = ()
    is_several: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineJob:
    """A job of the person in an engine's own queue, of this page or not.

    Attributes:
        number: by which the engine knows it.
        handle: as the status of a run names it.
        state, why: in words; why it waits, or empty.
        is_waiting: it has not begun.
        place, num_waiting: among those that wait for the same nodes, 1 being the next; None: not known.
        starts_unix_s: when it has begun; of one that waits, when it probably will.
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
    """An engine's own queue, as far as it is the person's.

    Attributes:
        name: of the engine, in a sentence.
        silent_since_unix_s: nothing newer is known; None while it answers.
    """

    name: str
    jobs: tuple[EngineJob, ...]
    silent_since_unix_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """One of the machines of an engine; None where something is not known.

    Attributes:
        run_id: the run that it trains; empty: none.
        gpu_users: names of those whose programs are on its GPUs now.
        torch: its version there.
        code: a sum of this project's code there.
        clock_off_s: by how much its clock is at least ahead of this machine's.
        sees_runs: whether it sees the folder of the runs; None also where it is not to.
        problems: in words, with what to do.
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
        """Return it with more problems."""
        return replace(self, problems=(*self.problems, *problems))


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """What an all-reduce between two machines of an engine was measured to take.

    Attributes:
        hosts: the names of the two.
        bytes_per_s: gradients that pass, those of the largest tensor; None: it was not measured.
        latency_s: the smallest tensor's time.
        problem: in words, with what to do; empty: all is as it should be.
    """

    hosts: tuple[str, str]
    backend: str = ""
    bytes_per_s: float | None = None
    latency_s: float | None = None
    problem: str = ""


# An engine takes a run that it was given within this time, or the start has failed.
HANDSHAKE_S = 20.0


class StartError(RuntimeError):
    """A run did not come up; says why."""


class Launch(ABC):
    """One start of a run, from the order to its end."""

    @abstractmethod
    def wait_until_owned(self) -> None:
        """Wait until the engine has taken the run: from then on its status says what becomes of it.

        Raises:
            StartError: when it cannot.
        """

    @abstractmethod
    def wait_for_end(self) -> None:
        """Wait until nothing of this start is left."""


class Engine(ABC):
    """One way to run jobs; safe to be called by several threads."""

    name: ClassVar[str]
    # It decides by itself when a run starts, so the page's queue hands each on at once.
    has_queue: ClassVar[bool] = False
    # A run is submitted as a script.
    has_scripts: ClassVar[bool] = False
    # Where a run waits that it has taken, in words.
    waits_where: ClassVar[str] = "in the cluster's queue"
    # It knows the machines of its runs by name, and reports on them.
    has_hosts: ClassVar[bool] = False
    # It can kill a single rank, for who wants to see what becomes of the others.
    kills_ranks: ClassVar[bool] = False

    @abstractmethod
    def capacity(self) -> Capacity:
        """Return what it can give a run now."""

    @abstractmethod
    def check(self, config: Config) -> list[Problem]:
        """Return what in a configuration it cannot do, before anything is started."""

    @abstractmethod
    def start(self, run: RunDirectory, ticket: Ticket) -> Launch:
        """Start a run that was given what its ticket says.

        Raises:
            OSError: when its files cannot be written.
            ValueError: when it may not be started.
        """

    @abstractmethod
    def is_alive(self, run: RunDirectory, handle: Handle) -> bool | None:
        """Tell whether somebody looks after a run now; None where that cannot be found out."""

    @abstractmethod
    def stop(self, run: RunDirectory, *, save: bool, why: str = "") -> str:
        """Have a live run end, after a save where that is asked for; return the command's id.

        Returns at once. What does not obey is ended by force, in the time that the engine promises.

        Raises:
            OSError: when the run's folder cannot be written.
            ValueError: when it may not be stopped.
        """

    @abstractmethod
    def kill(self, run: RunDirectory) -> None:
        """End every process of a live run now, without a save; on return its status says so."""

    def kill_rank(self, run: RunDirectory, rank: int) -> None:
        """Kill the process of one rank now (SIGKILL): the run then fails, as it would by itself.

        Raises:
            ValueError: when this engine cannot, or the rank has no process.
            OSError: when the run's folder cannot be written.
        """
        del run, rank
        raise ValueError(
            f"a single rank can be killed from here only on this machine; this run is on {self.name}"
        )

    @abstractmethod
    def logs(self, run: RunDirectory) -> list[Path]:
        """Return what the run's processes have written, rank 0 first."""

    @abstractmethod
    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        """Return the command that does the same by hand, in the project's folder.

        It makes a new run in `run_dir`; with `resume_step` it resumes the one that is there.
        """

    def script_of(self, run: RunDirectory) -> str | None:
        """Return the script that a run was submitted with; None where there is none."""
        del run
        return None

    def is_waiting(self, handle: Handle) -> bool:
        """Tell whether a run that it has taken waits to be started, for the first time or again."""
        del handle
        return False

    # An engine that has more than one place for a run. Most have one.

    def capacity_for(self, config: Config) -> Capacity:
        """Return what it can give a run of this configuration, which may name a place."""
        del config
        return self.capacity()

    def asks(self) -> Mapping[str, AskedField]:
        """Return the fields that say where a run trains and that a person may choose, by name."""
        return {}

    def choices(self, config: Config) -> Mapping[str, tuple[Choice, ...]]:
        """Return what can be chosen now in those of these fields whose choices change."""
        del config
        return {}

    def script(self, config: Config, run_dir: Path, resume_step: int | None = None) -> str | None:
        """Return the job of a run as the script that would be submitted; None where there is none.

        Raises:
            ValueError: when a value cannot stand in a script.
        """
        del config, run_dir, resume_step
        return None

    def why_it_waits(self, handle: Handle) -> str | None:
        """Return in words why a run that it has taken waits; None where no run waits for it."""
        del handle
        return None

    def silence(self, handle: Handle) -> str | None:
        """Return in words since when nothing is known of a live run's processes; None: they are known of."""
        del handle
        return None

    def detail(self, handle: Handle) -> str | None:
        """Return in a few words why the processes of a live run stand still; None: they do not."""
        del handle
        return None

    def ended_status(self, run: RunDirectory, status: Status) -> Status:
        """Return the status of a run that has ended, completed by what this engine knows of its end.

        Args:
            status: `lost` if the run wrote no end itself.
        """
        del run
        return status

    def queue(self) -> EngineQueue | None:
        """Return the person's jobs in its own queue; None where it has none of its own."""
        return None

    def place_of(self, handle: Handle) -> str | None:
        """Return in words where in its own queue a run waits; None where that is not known."""
        del handle
        return None

    def starts_at(self, handle: Handle) -> float | None:
        """Return when a run that waits will probably start; None where that is not known."""
        del handle
        return None

    def host_reports(self, runs_dir: Path) -> Sequence[HostReport] | None:
        """Return what its machines have and whether they fit together, in seconds; None: it names none.

        Raises:
            OSError: when the folder of the runs takes no file.
        """
        del runs_dir
        return None

    def links(self) -> Sequence[tuple[str, str]]:
        """Return the pairs of machines between which it can measure; none: it names no machines."""
        return ()

    def measure_link(self, first: str, second: str) -> LinkReport:
        """Measure real all-reduces between two of its machines, which takes some seconds.

        Raises:
            ValueError: when it has no such machines.
        """
        raise ValueError(f"{self.name} names no machines, so none that are {first} and {second}")

    # What an engine may keep ready, so that a run starts sooner. Most keep nothing.

    def begin(self) -> None:  # noqa: B027
        """Keep ready from now on what is expected, until `close`."""

    def close(self) -> None:  # noqa: B027
        """Let go what is kept ready."""

    def expect(self, num_ranks: int) -> None:  # noqa: B027
        """Hear that somebody may soon start a run of so many ranks."""

    def note_running(self, is_anything_running: bool) -> None:  # noqa: B027
        """Hear whether runs go on: then they have all of the machine."""

    def kept_ready(self) -> Mapping[str, int] | None:
        """Return how many ranks wait and the bytes they hold in all; None where none do."""
        return None

    def own_processes(self) -> Mapping[int, float]:
        """Return the processes on this machine that belong to no run yet, with when each was started."""
        return {}
