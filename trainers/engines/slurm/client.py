"""The gateway to Slurm: runs its commands and parses their output."""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar

from trainers.engines.base import EngineJob
from trainers.engines.remembered import CachedAnswer
from trainers.engines.slurm import endings
from trainers.engines.slurm.endings import JobEnd, SlurmError
from trainers.machine import environment

DURATION_FORMAT = (
    "minutes, hours:minutes:seconds or days-hours:minutes:seconds, such as 90, 1:30:00 or 2-12:00:00"
)
_MAX_LENGTH = 20
_UNLIMITED = frozenset({"infinite", "unlimited", "n/a", "not_set", ""})
_AFTER_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_WITHOUT_DAYS = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


def parse_duration(text: str) -> float:
    """Return a time limit in seconds; infinity without a limit.

    Raises:
        ValueError: If Slurm would reject or ignore the limit.
    """
    text = text.strip().lower()
    if text in _UNLIMITED:
        return math.inf
    if len(text) <= _MAX_LENGTH:
        if match := _AFTER_DAYS.fullmatch(text):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
        if match := _WITHOUT_DAYS.fullmatch(text):
            first, second, third = match.groups()
            if third is not None:
                return (int(first) * 60.0 + int(second)) * 60 + int(third)
            return int(first) * 60.0 + int(second or 0)
    raise ValueError(f"{text!r} is not a time limit: {DURATION_FORMAT}")


def duration_text(limit_s: float) -> str:
    """Return a time limit for display: 30 min, 12 h, 7 days."""
    if math.isinf(limit_s):
        return "no time limit"
    for unit_s, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if limit_s >= 2 * unit_s or unit_s == 60:
            return f"{limit_s / unit_s:.3g} {name}"
    raise AssertionError


# The job's name is the last column because it may contain separators.
JOB_COLUMNS = ("%A", "%T", "%r", "%N", "%P", "%D", "%V", "%S", "%j")
PENDING_COLUMNS = ("%A", "%P", "%Q")
START_COLUMNS = ("%A", "%S")
# Print Unix time in seconds, so that the controller's time zone does not matter.
TIMES = {"SLURM_TIME_FORMAT": "%s"}

FIRST_INTERVAL_S = 10.0
MAX_INTERVAL_S = 900.0
MAX_ESTIMATES = 200

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class SlurmJob(EngineJob):
    """A job as the controller reports it.

    Attributes:
        slurm_state: In full, such as PENDING.
        reason: Slurm's reason for waiting, such as Resources.
    """

    slurm_state: str
    reason: str

    @property
    def has_ended(self) -> bool:
        return self.slurm_state in endings.ENDED


# States in which a job waits to be started or restarted.
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})


def parse_jobs(rows: Iterable[Sequence[str]]) -> dict[str, SlurmJob]:
    """Parse squeue's rows by job ID; the start of a waiting job is Slurm's estimate, if known.

    A row that does not begin with a job ID is part of a job's name.
    """
    return {
        number: SlurmJob(
            number=number,
            handle={"job_id": number},
            name=name,
            state=state.replace("_", " ").lower(),
            is_waiting=state in WAITING,
            why=reason_text(reason) if state in WAITING else "",
            where=partition,
            nodes=nodes,
            num_nodes=int(count) if count.isdecimal() else 1,
            submitted_unix_s=unix_s(submitted),
            starts_unix_s=unix_s(starts),
            slurm_state=state,
            reason=reason,
        )
        for number, state, reason, nodes, partition, count, submitted, starts, name in rows
        if number.isdecimal()
    }


def reason_text(reason: str) -> str:
    """Return Slurm's reason why a job waits, quoted."""
    is_considered = reason not in ("", "None", "(null)")
    return f"Slurm's reason: {reason}." if is_considered else "Slurm has not considered the job yet."


def unix_s(text: str) -> float | None:
    """Parse a time of Slurm; None if Slurm does not know it."""
    text = text.strip()
    if text.isdecimal():
        return float(text) or None
    try:
        # Old versions of Slurm, and commands through SSH, print local time: assume this machine's zone.
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def parse_queue_places(rows: Iterable[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Return each waiting job's place in its partition (1 is next) and the number of jobs waiting there."""
    by_partition: dict[str, list[tuple[int, int, str]]] = {}
    for number, partition, priority in rows:
        if number.isdecimal() and priority.isdecimal():
            by_partition.setdefault(partition, []).append((-int(priority), int(number), number))
    return {
        number: (place, len(jobs))
        for jobs in by_partition.values()
        for place, (_, _, number) in enumerate(sorted(jobs), 1)
    }


@dataclass
class _CachedEstimate(Generic[Answer]):
    pause_s: float
    next_s: float = 0.0
    answer: Answer | None = None
    error: SlurmError | None = None


@dataclass
class Estimates(Generic[Answer]):
    """Cached answers about single jobs. The interval between requests grows for each job, to spare the
    controller.

    Args:
        request: Returns the answer for one job, or None; may raise SlurmError.
        first_interval_s: Time between the first two requests; each later interval is twice as long.
    """

    request: Callable[[str], Answer | None]
    clock: Callable[[], float] = time.monotonic
    first_interval_s: float = FIRST_INTERVAL_S
    _cache: dict[str, _CachedEstimate[Answer]] = field(default_factory=dict)

    def of(self, number: str) -> Answer | None:
        """Return the latest answer for a job.

        Raises:
            SlurmError: If Slurm did not answer the last request.
        """
        entry = self._cache.setdefault(number, _CachedEstimate(pause_s=self.first_interval_s))
        if (now := self.clock()) >= entry.next_s:
            entry.next_s, entry.pause_s = now + entry.pause_s, min(2 * entry.pause_s, MAX_INTERVAL_S)
            try:
                entry.answer, entry.error = self.request(number), None
            except SlurmError as error:
                entry.answer, entry.error = None, error
        while len(self._cache) > MAX_ESTIMATES:
            del self._cache[next(iter(self._cache))]
        if entry.error is not None:
            raise SlurmError(str(entry.error))
        return entry.answer


QueuePlaces = Mapping[str, tuple[int, int]]


# Explicit widths, because Slurm truncates longer values; separators, because names may contain spaces.
PARTITION_COLUMNS = (
    "Partition:200", "Available:40", "Nodes:40", "StateLong:80", "CPUs:40", "Memory:40", "Time:40",
    "Size:40", "Gres:1000", "GresUsed:1000",
)  # fmt: skip
# States in which a node starts jobs, now or after its current jobs. "~": powered on on demand.
_UP = re.compile(r"(idle|mixed|allocated|completing|planned)[~#+-]?")
_IDLE = re.compile(r"(idle|planned)[~-]?")
_PARENTHESES = re.compile(r"\([^)]*\)")
ANY_TYPE = ""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Identical nodes of a partition.

    Attributes:
        num_cores, memory_bytes: Per node.
        gpus, gpus_used: Per node, by type; "" is a GPU without a type.
    """

    num_nodes: int
    is_up: bool
    is_idle: bool
    num_cores: int
    memory_bytes: int
    gpus: Mapping[str, int]
    gpus_used: Mapping[str, int]

    def num_gpus(self, kind: str) -> int:
        """Return the number of GPUs of a type per node; of all types if `kind` is empty."""
        return sum(self.gpus.values()) if kind == ANY_TYPE else self.gpus.get(kind, 0)

    def num_free_gpus(self, kind: str) -> int:
        """Return the total number of free GPUs of a type on these nodes."""
        if not self.is_up:
            return 0
        used = self.gpus_used
        in_use = sum(used.values()) if kind == ANY_TYPE else used.get(kind, 0)
        return self.num_nodes * max(0, self.num_gpus(kind) - in_use)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition: nodes to which jobs can be submitted.

    Attributes:
        is_up: True if jobs start there now; otherwise they wait.
        time_limit_s: Of one job; infinity: no limit.
        max_nodes: Of one job; None: limited only by the number of nodes.
    """

    name: str
    is_default: bool
    is_up: bool
    time_limit_s: float
    max_nodes: int | None
    groups: tuple[NodeGroup, ...]

    @property
    def num_nodes(self) -> int:
        return sum(group.num_nodes for group in self.groups)

    @property
    def max_nodes_per_job(self) -> int:
        """Maximum number of nodes of one job."""
        return self.num_nodes if self.max_nodes is None else min(self.max_nodes, self.num_nodes)

    @property
    def num_idle(self) -> int:
        return sum(group.num_nodes for group in self.groups if group.is_idle)

    @property
    def num_cores(self) -> int:
        """Number of cores of the smallest node."""
        return min((group.num_cores for group in self.groups), default=0)

    @property
    def memory_bytes(self) -> int:
        """Memory of the smallest node."""
        return min((group.memory_bytes for group in self.groups), default=0)

    def gpu_types(self) -> list[str]:
        """Return the types of GPUs, with "" for GPUs without a type; empty if the partition has no GPUs."""
        return sorted({kind for group in self.groups for kind, count in group.gpus.items() if count})

    def gpus(self, kind: str = ANY_TYPE) -> tuple[int, int]:
        """Return the number of free GPUs of a type, and their total number."""
        free = sum(group.num_free_gpus(kind) for group in self.groups)
        return free, sum(group.num_nodes * group.num_gpus(kind) for group in self.groups)

    def max_on_nodes(self, num_nodes: int, count: Callable[[NodeGroup], int]) -> int:
        """Return the largest amount that `num_nodes` nodes each have; 0 if there are fewer nodes."""
        counts = sorted(
            (count(group) for group in self.groups for _ in range(min(group.num_nodes, num_nodes))),
            reverse=True,
        )
        return counts[num_nodes - 1] if 0 < num_nodes <= len(counts) else 0


def parse_partitions(rows: Iterable[Sequence[str]]) -> list[Partition]:
    """Parse sinfo's rows, one per kind and state of nodes.

    Raises:
        ValueError: If a row is invalid.
    """
    by_name: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        by_name.setdefault(row[0], []).append(row)
    return [_parse_partition(name, partition_rows) for name, partition_rows in by_name.items()]


def _parse_partition(name: str, rows: Sequence[Sequence[str]]) -> Partition:
    _, available, _, _, _, _, limit, size, _, _ = rows[0]
    return Partition(
        name=name.removesuffix("*"),
        is_default=name.endswith("*"),
        is_up=available == "up",
        time_limit_s=parse_duration(limit),
        max_nodes=_max_nodes(size),
        groups=tuple(_parse_group(row) for row in rows if int(row[2])),
    )


def _parse_group(row: Sequence[str]) -> NodeGroup:
    _, _, count, state, cores, memory, _, _, gres, used = row
    return NodeGroup(
        num_nodes=int(count),
        is_up=_UP.fullmatch(state) is not None,
        is_idle=_IDLE.fullmatch(state) is not None,
        num_cores=_parse_number(cores),
        memory_bytes=_parse_number(memory) * 2**20,
        gpus=parse_gpus(gres),
        gpus_used=parse_gpus(used),
    )


def parse_gpus(gres: str) -> dict[str, int]:
    """Parse a GRES list into GPUs by type: "gpu:a100:4(S:0-1),gpu:2,nvme:1" is {"a100": 4, "": 2}."""
    counts = Counter[str]()
    for entry in _PARENTHESES.sub("", gres).split(","):
        name, *parts = entry.strip().split(":")
        if name != "gpu" or not parts or not parts[-1].isdecimal():
            continue
        # Notes in parentheses are removed: "gpu:(null):1", a used GPU of unknown type, has an empty type.
        counts[":".join(parts[:-1])] += int(parts[-1])
    return dict(counts)


def _max_nodes(size: str) -> int | None:
    """Return the maximum number of nodes of a job, from "1-infinite", "1-4" or "1"."""
    maximum = size.rpartition("-")[2]
    return int(maximum) if maximum.isdecimal() else None


def _parse_number(cell: str) -> int:
    """Parse a number; Slurm prints "4+" if nodes differ."""
    return int(cell.rstrip("+"))


def partition_text(partition: Partition) -> str:
    """Return a partition's resources and how many are free, as one line of a list."""
    plural = "" if partition.num_nodes == 1 else "s"
    parts = [f"{partition.num_nodes} node{plural}, {partition.num_idle} idle"]
    for kind in partition.gpu_types():
        free, total = partition.gpus(kind)
        parts.append(f"{free} of {total} {kind or 'GPU'}{' GPUs' if kind else 's'} free")
    if not partition.gpu_types():
        parts.append("no GPUs")
    limit_s = partition.time_limit_s
    parts.append("no time limit" if math.isinf(limit_s) else f"up to {duration_text(limit_s)}")
    if not partition.is_up:
        parts.append("starts no jobs at the moment")
    return f"{partition.name}: {'; '.join(parts)}"


# squeue hangs for minutes when slurmctld is down.
TIME_LIMIT_S = 8.0
SUBMIT_LIMIT_S = 30.0
JOBS_FRESH_S = 2.0
JOBS_USABLE_S = 8.0
ACCOUNTS_LIMIT_S = 3.0
ACCOUNTS_RETRY_S = 300.0
PARTITIONS_FRESH_S = 30.0
PLACES_FRESH_S = 30.0
SEPARATOR = "|"
# Error message of `scontrol show job`. Any other failure proves nothing about the job.
UNKNOWN_JOB = "Invalid job id"
# Variables to remove: a user's defaults (SQUEUE_PARTITION) would hide jobs from this program, and if the page
# itself runs in a job, the jobs that it submits would inherit that job's variables.
_NOT_FOR_SLURM = re.compile(r"(SQUEUE|SINFO|SCANCEL|SCONTROL)_|SLURM_(?!(CONF|CLUSTERS|JWT)$)")


class Slurm:
    """The cluster, queried by commands. Thread-safe.

    Args:
        variables: Added to the commands' environment.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._jobs = CachedAnswer(self._ask_for_jobs, JOBS_FRESH_S, usable_s=JOBS_USABLE_S)
        self._places = CachedAnswer(self._ask_for_places, PLACES_FRESH_S, outlives_failures=True)
        self._estimates = Estimates(self._ask_for_start)
        self._accounts_retry_at = 0.0
        self._ends = Estimates(self._ask_for_end, first_interval_s=JOBS_FRESH_S)
        self._partitions = CachedAnswer(self._ask_for_partitions, PARTITIONS_FRESH_S, outlives_failures=True)

    def submit(self, script: str) -> str:
        """Submit a batch script; return the job ID.

        Raises:
            SlurmError: If it is rejected.
        """
        output = self._ask(
            ["sbatch", "--parsable"], SUBMIT_LIMIT_S, input_text=script, keep=environment.FOR_NOTIFYING
        )
        self.forget()
        return output.strip().partition(";")[0]

    def cancel(self, job_id: str, signal: str | None = None) -> None:
        """Cancel a job; with a signal, send it to all processes of the job instead.

        Raises:
            SlurmError: If the controller does not accept the command.
        """
        options = [] if signal is None else [f"--signal={signal}", "--full"]
        self._ask(["scancel", *options, job_id], TIME_LIMIT_S)
        self.forget()

    def find(self, job_id: str, *, refresh: bool = False) -> SlurmJob | None:
        """Return a live or recently ended job of the current user; None if the controller does not know it.

        Args:
            refresh: Ask now, even if the controller did not answer the last request.

        Raises:
            SlurmError: If the controller does not answer.
        """
        return self._jobs.get(refresh=refresh).get(job_id)

    def forget(self) -> None:
        """Invalidate the cached answers."""
        self._jobs.forget()
        self._places.forget()

    def list_jobs(self) -> list[EngineJob]:
        """Return the current user's live jobs; the last known ones while the controller does not answer.

        Raises:
            SlurmError: If the controller has not answered yet.
        """
        try:
            jobs = self._jobs.get()
        except SlurmError:
            if self._jobs.last is None:
                raise
            jobs = self._jobs.last
        return [job for job in jobs.values() if not job.has_ended]

    def queue_places(self) -> QueuePlaces:
        """Return the place of each waiting job, as far as the current user may see other users' jobs.

        Raises:
            SlurmError: If the controller has not answered yet.
        """
        return self._places.get()

    def end_of(self, job_id: str) -> JobEnd | None:
        """Return the end of a job; None if it has not ended, or Slurm does not know it any more.

        Raises:
            SlurmError: If the controller does not answer.
        """
        job = self.find(job_id)
        if job is not None and not job.has_ended:
            return None
        # Accounting records who cancelled a job, and keeps jobs longer than the controller.
        try:
            end = self._ends.of(job_id)
        except SlurmError:
            if job is None:
                raise
            end = None
        return end if end is not None or job is None else JobEnd(state=job.slurm_state, nodes=job.nodes)

    @property
    def jobs_silent_since_unix_s(self) -> float | None:
        """Time of the last answer about this user's jobs; None while the controller answers."""
        return self._jobs.silent_since_unix_s

    @property
    def jobs_answered_unix_s(self) -> float | None:
        """Time at which the latest answer of `find` was requested."""
        return self._jobs.requested_unix_s

    def starts_at(self, job_id: str) -> float | None:
        """Return the estimated start of a waiting job; None if Slurm has none."""
        with contextlib.suppress(SlurmError):
            return self._estimates.of(job_id)
        return None

    def partitions(self) -> list[Partition]:
        """Return the partitions; the last known ones while the controller does not answer.

        Raises:
            SlurmError: If the controller has not answered yet.
        """
        return self._partitions.get()

    def _ask_for_partitions(self) -> list[Partition]:
        columns = ",".join(f"{column}{SEPARATOR}" for column in PARTITION_COLUMNS)
        output = self._ask(["sinfo", "--noheader", f"--Format={columns}"], TIME_LIMIT_S)
        rows = [line.rstrip().removesuffix(SEPARATOR) for line in output.splitlines() if line.strip()]
        try:
            return parse_partitions([cell.strip() for cell in row.split(SEPARATOR)] for row in rows)
        except ValueError as error:
            raise SlurmError(f"sinfo gave unexpected output: {error}") from error

    def _ask_for_jobs(self) -> Mapping[str, SlurmJob]:
        command = ["squeue", "--noheader", "--me", "--states=all", _format_option(JOB_COLUMNS)]
        return parse_jobs(self._rows(command, TIMES))

    def _ask_for_places(self) -> QueuePlaces:
        command = ["squeue", "--noheader", "--states=PENDING", _format_option(PENDING_COLUMNS)]
        return parse_queue_places(self._rows(command))

    def _ask_for_start(self, job_id: str) -> float | None:
        command = ["squeue", "--noheader", "--start", f"--jobs={job_id}", _format_option(START_COLUMNS)]
        rows = self._rows(command, TIMES)
        return next((unix_s(starts) for number, starts in rows if number == job_id), None)

    def _ask_for_end(self, job_id: str) -> JobEnd | None:
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
        format_option = f"--format={','.join(endings.ACCOUNT_COLUMNS)}"
        end = None
        if time.monotonic() >= self._accounts_retry_at:
            try:
                output = self._ask([*command, format_option], ACCOUNTS_LIMIT_S, variables=TIMES)
                end = endings.parse_accounts(output)
            # many clusters have no accounting, and waiting for an unavailable database costs seconds
            except SlurmError:
                self._accounts_retry_at = time.monotonic() + ACCOUNTS_RETRY_S
        if end is not None and end.name:
            return end
        # Accounting may lag, or lack the name of a job that was cancelled immediately.
        try:
            output = self._ask(["scontrol", "--oneliner", "show", "job", job_id], TIME_LIMIT_S)
        except SlurmError as error:
            if end is None and UNKNOWN_JOB not in str(error):
                raise
            return end
        shown_end = endings.parse_controller(output)
        return shown_end if end is None or shown_end is None else replace(end, name=shown_end.name)

    def _rows(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> list[list[str]]:
        output = self._ask(command, TIME_LIMIT_S, variables=variables)
        width = command[-1].count(SEPARATOR) + 1
        rows = [
            [cell.strip() for cell in line.split(SEPARATOR, width - 1)]
            for line in output.splitlines()
            if line.strip()
        ]
        return [row for row in rows if len(row) == width]

    def _ask(
        self,
        command: Sequence[str],
        limit_s: float,
        *,
        input_text: str | None = None,
        keep: Collection[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command without secrets in its environment: Slurm stores the environment of submitted jobs.

        Args:
            keep: Names of secrets to pass nevertheless.
        """
        try:
            result = subprocess.run(
                command,
                env=environment.for_a_child(
                    {**self._variables, **(variables or {})}, keep=keep, without=_NOT_FOR_SLURM
                ),
                input=input_text,
                stdin=subprocess.DEVNULL if input_text is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{command[0]} did not finish within {limit_s:.0f} s") from error
        except FileNotFoundError as error:
            raise SlurmError(
                f"{command[0]} is not installed on this machine: is this a login node?"
            ) from error
        if result.returncode:
            error_lines = result.stderr.strip().splitlines()
            raise SlurmError(
                error_lines[-1] if error_lines else f"{command[0]} ended with {result.returncode}"
            )
        return result.stdout


def _format_option(columns: Sequence[str]) -> str:
    return f"--format={SEPARATOR.join(columns)}"
