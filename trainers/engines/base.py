"""The engine interface and the state of a run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from trainers.contract import events
from trainers.contract import status as status_file
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
from trainers.contract.tickets import Grant
from trainers.files.plain_files import open_plain

LAUNCH_GRACE_S = 20.0

# Returns True if a process (launcher, job or supervisor) owns the run with this status; None if unknown.
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
        status = _state_without_status(run)
        return replace(status, error=str(error) if status.state not in events.LIVE_STATES else None)


def _recorded_status(run: RunDirectory, is_alive: IsAlive) -> Status:
    recorded = status_file.read(run.status)
    if recorded is None:
        return _state_without_status(run)
    if recorded.state in events.LIVE_STATES and is_alive(run, recorded) is not False:
        return recorded
    if recorded.state not in events.LIVE_STATES:
        # The run is locked although its status is final: a user trains it again from a terminal, so only the
        # events have its state.
        latest_state = events.last_state(run.events) if run.is_locked() else None
        return recorded if latest_state is None else replace(recorded, state=latest_state)
    # The owner may have ended between the two reads above, so read its last status again.
    recorded = status_file.read(run.status) or recorded
    if recorded.state not in events.LIVE_STATES:
        return recorded
    last_event = events.last(run.events)
    if (
        last_event is not None
        and last_event["kind"] == "state"
        and last_event["state"] in events.ENDED_STATES
    ):
        # The run wrote its final event, but its status file could no longer be written.
        return replace(recorded, state=last_event["state"])
    return replace(recorded, state="lost", error=_lost_message(run))


def _waiting_status(run: RunDirectory, is_alive: IsAlive) -> Status | None:
    """Return the status of a run that has a ticket, or None if it has just left the queue."""
    with contextlib.suppress(StatusError):
        recorded = status_file.read(run.status)
        if recorded is not None and recorded.state in events.LIVE_STATES and is_alive(run, recorded):
            return recorded  # its engine is about to claim the ticket
    return Status(state="queued") if run.queued.exists() else None


def _state_without_status(run: RunDirectory) -> Status:
    """Return the state of a run without a status file: just created, or started from a terminal."""
    latest_state = events.last_state(run.events)
    if run.is_locked():
        return Status(state=latest_state or "starting")
    if latest_state is not None:
        is_lost = latest_state in events.LIVE_STATES
        return Status(state="lost", error=_lost_message(run)) if is_lost else Status(state=latest_state)
    age_s = time.time() - run.config.stat().st_mtime if run.config.exists() else LAUNCH_GRACE_S
    # abs(): after the clock was set back, the file's time is in the future and would count as new for hours.
    if abs(age_s) < LAUNCH_GRACE_S:
        return Status(state="queued")
    return Status(state="lost", error=_lost_message(run))


def _lost_message(run: RunDirectory) -> str:
    is_saved = any(run.checkpoints.glob("step_*/manifest.json"))
    return f"{LOST_MESSAGE} {RESUME_HINT if is_saved else NOTHING_SAVED_HINT}"


THIS_MACHINE = "this machine"
# Placeholder in the literal command for the folder of a script's stored code.
CODE_PLACEHOLDER = "@CODE@"


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Resources that an engine can currently give one run.

    Attributes:
        num_gpus: Per usable node.
        max_gpus_per_run: Per node; None: all. A run gets one MIG instance at most.
        gpu_memory_bytes, memory_bytes: Of the smallest GPU or MIG instance, and of a node.
        gpu_capability: The lowest compute capability, such as (7, 5).
        gpu_free_bytes: Per GPU, in no order; empty if unknown.
        cpu_has_bf16: True if the CPU multiplies bf16 natively; None if unknown.
        place: Name of the place for messages, such as "this machine".
        has_more_ranks_than_cores: True if CPU ranks may share a core.
        placement_fields: The fields, by name, that select where a run trains; their choices may depend on the
            configuration.
    """

    num_nodes: int
    num_gpus: int
    num_cores: int
    max_gpus_per_run: int | None = None
    gpu_names: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    gpu_capability: tuple[int, int] | None = None
    gpu_free_bytes: tuple[int, ...] = ()
    memory_bytes: int | None = None
    cpu_has_bf16: bool | None = None
    place: str = THIS_MACHINE
    has_more_ranks_than_cores: bool = True
    placement_fields: Mapping[str, PlacementField] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlacementChoice:
    """One value of a field and its label in a list."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class PlacementField:
    """A field of the form that selects where a run trains.

    Attributes:
        choices: All allowed values; empty: free text.
        is_several: True if any number of choices may be selected, joined by newlines.
    """

    default: Any = None
    choices: tuple[PlacementChoice, ...] = ()
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
    place: int | None = None
    num_waiting: int | None = None
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
        sees_runs: True if it can access the runs directory; None also if it does not need access.
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


# If an engine does not own a run after this time, the start has failed.
HANDSHAKE_S = 20.0


class StartError(RuntimeError):
    """A run failed to start; the message gives the reason."""


# File in the run's log folder: the output of the process that owns the run.
SUPERVISOR_LOG = "supervisor.log"
MAX_LAST_LINE_BYTES = 16 * 1024
# File in the run's folder: the script that submitted the run, if its engine uses scripts.
JOB_SCRIPT = "job.sh"
MAX_SCRIPT_BYTES = 100_000


def last_log_line(run: RunDirectory) -> str:
    """Return the last line of the log of a run's owner; empty if there is none."""
    try:
        with open_plain(run.logs / SUPERVISOR_LOG) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LAST_LINE_BYTES))
            lines = log.read().decode("utf-8", errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1][:500] if lines else ""


class Launch(ABC):
    """One start of a run, from the request to its end.

    Attributes:
        location: Text for a terminal about where the run was started, such as a job number.
    """

    location = THIS_MACHINE

    @abstractmethod
    def wait_until_owned(self) -> None:
        """Wait until the engine owns the run; from then on the status file records its state.

        Raises:
            StartError: If the engine cannot take the run.
        """

    def wait_until_at_work(self) -> None:
        """Wait until the run has started on the machine that trains it, if the engine copies the run there
        first.

        Raises:
            StartError: If the run does not start.
        """
        self.wait_until_owned()

    @abstractmethod
    def wait_for_end(self) -> None:
        """Wait until no process of this start remains."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What an engine knows about a run. None: nothing to report.

    Attributes:
        is_alive: True if a process (launcher, job or supervisor) owns the run; None if that is unknown.
        is_waiting: True if the run waits to be started or restarted.
        reason: Why it waits.
        place: Where it waits, such as "in the cluster's queue: job 7, place 1 of 2".
        starts_unix_s: Estimated start of a waiting run.
        silence: Text that says since when its processes have not reported.
        detail: Why its processes are suspended.
        end: The status of a `lost` or `stopped` run, completed with what the engine knows about the end.
    """

    is_alive: bool | None = False
    is_waiting: bool = False
    reason: str | None = None
    place: str = ""
    starts_unix_s: float | None = None
    silence: str | None = None
    detail: str | None = None
    end: Status | None = None


class HostChecks(ABC):
    """Base of an engine that knows its hosts by name: reports on them, and measurements between them."""

    @abstractmethod
    def report(self, runs_dir: Path) -> Sequence[HostReport]:
        """Return the state of each host and any mismatch between them. Takes seconds.

        Raises:
            OSError: If the folder of the runs is not writable.
        """

    @abstractmethod
    def links(self) -> Sequence[tuple[str, str]]:
        """Return the pairs of hosts that `measure_link` accepts."""

    @abstractmethod
    def measure_link(self, first: str, second: str) -> LinkReport:
        """Measure real all-reduces between two hosts. Takes seconds."""


class Preparation:
    """Processes that an engine keeps ready so that runs start sooner. This base class keeps none."""

    def begin(self) -> None:
        """Start keeping processes ready for the expected runs, until `close`."""

    def close(self) -> None:
        """Release everything kept ready."""

    def expect(self, num_ranks: int) -> None:
        """Note that a run with this number of ranks may start soon."""

    def note_running(self, is_anything_running: bool) -> None:
        """Note whether runs are active. Active runs get the entire machine."""

    def ready_resources(self) -> Mapping[str, int] | None:
        """Return the expected number of ranks and the memory in use, in bytes; None if nothing is ready."""
        return None

    def processes(self) -> Mapping[int, float]:
        """Return the processes of this machine that belong to no run yet: pid to start time."""
        return {}


def script_problems(config: Config, *, no_paths_reason: str = "") -> list[Problem]:
    """Return the problems of a user's script on other machines.

    Args:
        no_paths_reason: Why the script cannot use paths of this machine; empty if it can.
    """
    if config.script_start == "python" and config.num_nodes > 1:
        allowed = (
            "1: the launcher python starts the ranks on one machine only; torchrun can use several machines"
        )
        return [Problem(field="num_nodes", value=config.num_nodes, allowed=allowed)]
    used_fields = [name for name in ("script_python", "script_folder") if getattr(config, name)]
    allowed = f"empty: {no_paths_reason}"
    return [
        Problem(field=name, value=getattr(config, name), allowed=allowed)
        for name in used_fields
        if no_paths_reason
    ]


class Engine(ABC):
    """One way to run jobs. Thread-safe."""

    name: ClassVar[str]
    # True if runs train on this machine: the page's queue assigns its cores and GPUs, and a user can kill a
    # single rank to see how the others react. Other engines schedule runs themselves, so the queue submits
    # each run immediately.
    is_this_machine: ClassVar[bool] = False
    preparation: Preparation = Preparation()
    # The site file that the engine was created from.
    _site_file: Path | None = None

    @abstractmethod
    def capacity(self, config: Config | None = None) -> Capacity:
        """Return the current capacity for a run.

        Args:
            config: The run's configuration, which may select a partition; None: the default partition.
        """

    @abstractmethod
    def check(self, config: Config) -> list[Problem]:
        """Return the problems of a configuration on this engine. Starts nothing."""

    @abstractmethod
    def start(self, run: RunDirectory, resume_step: int | None = None, grant: Grant | None = None) -> Launch:
        """Start a run.

        Args:
            grant: Resources from the queue; None: started from a terminal (`trainers.engines.start`).

        Raises:
            OSError: If it cannot be started now, or files cannot be written.
            ValueError: If the run is not allowed to start.
        """

    @abstractmethod
    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        """Return what the engine knows about a run.

        Args:
            status: As recorded in its folder, or derived from it; `lost` if the run recorded no end.
            is_queued: True if the run waits. The result then has the reason and the place, which may require
                a request to a scheduler.
        """

    def stop(self, run: RunDirectory, status: Status, *, save: bool, reason: str = "") -> str:
        """End a live run, after a checkpoint if `save` is set, and return the command's id.

        Returns immediately. Engines kill processes that ignore the command after their grace period.

        Args:
            status: The run's actual state, read for this request.
            reason: The reason for a stop that the user did not request. Such a run stops even if it cannot
                save.

        Raises:
            OSError: If the run's folder cannot be written.
            ValueError: If it may not be stopped.
        """
        del status
        return run.append_command("stop", save=save, **({"why": reason, "anyway": True} if reason else {}))

    @abstractmethod
    def kill(self, run: RunDirectory, status: Status) -> None:
        """Kill every process of a live run without saving. The status is final when this returns.

        Raises:
            OSError: If the run's folder cannot be written.
        """

    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        """Return the equivalent shell command, to be run in the project's folder.

        The command creates a new run in `run_dir`; with `resume_step` it resumes the existing run.
        """
        command = [sys.executable, "-m", "trainers.engines.start", str(run_dir), "--engine", self.name]
        if self._site_file is not None:
            command += ["--site", str(self._site_file)]
        if resume_step is None:
            code = ["--code", CODE_PLACEHOLDER] if config.is_script else []
            return [*command, *code, "--config", json.dumps(config.changed())]
        return [*command, "--resume", str(resume_step)]

    def script(self, config: Config, run_dir: Path, resume_step: int | None = None) -> str | None:
        """Return the job script that would be submitted for a run, or None if the engine uses none.

        Raises:
            ValueError: If a value cannot be written in a script.
        """
        del config, run_dir, resume_step
        return None

    def queue(self) -> EngineQueue | None:
        """Return the current user's jobs in the engine's queue; None if it has no queue."""
        return None


def status_on(engine: Engine, run: RunDirectory) -> Status:
    """Return the actual state of a run of this engine."""
    return true_status(run, lambda run, status: engine.describe(run, status).is_alive)


def submitted_script(engine: Engine, run: RunDirectory) -> str | None:
    """Return the script that submitted a run; None if it does not exist or is not a regular file."""
    if not engine.is_this_machine:
        with contextlib.suppress(OSError, ValueError), open_plain(run.path / JOB_SCRIPT) as file:
            return file.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    return None


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of the command line for an engine."""

    runs_dir: Path
    site_file: Path | None = None
    keeps_ready: bool = True


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """An engine that `--engine` offers.

    Attributes:
        label: Where runs train, for --help.
        create: Returns the engine; raises a ValueError with advice if it cannot work.
        uses_site: True if it reads a table of the site file.
        site_advice: What to write into the table, if the engine requires it; empty: not required.
        one_user: Verb phrase: why it serves only the user who started the page; empty: it serves all users.
        is_on_login_node: True if the page runs on a login node, for which --ssh exists.
        has_other_code: True if its hosts run their own copy of this program, without the user's plug-ins.
    """

    name: str
    label: str
    create: Callable[[EngineOptions], Engine]
    uses_site: bool = False
    site_advice: str = ""
    one_user: str = ""
    is_on_login_node: bool = False
    has_other_code: bool = False


KINDS: dict[str, EngineKind] = {}


def register_engine(
    name: str, **fields: Any
) -> Callable[[Callable[[EngineOptions], Engine]], Callable[[EngineOptions], Engine]]:
    """Register a function that creates an engine; `fields` are the fields of `EngineKind`.

    Raises:
        ValueError: If the name is taken.
    """

    def decorate(create: Callable[[EngineOptions], Engine]) -> Callable[[EngineOptions], Engine]:
        if name in KINDS:
            raise ValueError(f"engine is {name!r}, but an engine of this name is already registered")
        KINDS[name] = EngineKind(name=name, create=create, **fields)
        return create

    return decorate
