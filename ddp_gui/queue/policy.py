"""Scheduling policy: which queued runs start next, on which devices and within which limits."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ddp_gui.devices.capacity import Owners
from trainers.contract.tickets import DeviceKind, GrantedGpu
from trainers.files.typed import Limit
from trainers.machine import cuda_environment, nvml, processes

# Returns process start times by PID.
OwnProcesses = Callable[[], Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class Users:
    """The users of a GPU: ids of this page's runs, and descriptions of other processes."""

    runs: frozenset[str] = frozenset()
    other_programs: tuple[str, ...] = ()


NO_USERS = Users()


@dataclass(frozen=True, kw_only=True)
class DeviceSnapshot:
    """The GPUs that runs can use, with their users, and the number of CPU ranks (None: unlimited).

    `being_checked` are the UUIDs of GPUs that a machine check uses, which are not allocated. `note` explains
    why no GPU is usable, or why the users of GPUs are unknown.
    """

    gpus: tuple[GrantedGpu, ...] = ()
    users: Mapping[str, Users]
    cpu_ranks: int | None = None
    being_checked: frozenset[str] = frozenset()
    note: str | None = None

    def users_of(self, uuid: str) -> Users:
        """Return the users of a GPU."""
        return self.users.get(uuid, NO_USERS)

    def gpus_of(self, run_id: str) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that a run's processes use."""
        return tuple(gpu.uuid for gpu in self.gpus if run_id in self.users_of(gpu.uuid).runs)


class QueueDevices:
    """Reads the machine's GPUs; the number of CPU ranks is an option of the page.

    Args:
        own_processes: returns the page's own processes (the warm pool, a machine check) with their start
            times. They do not count as other programs.
        being_checked: returns the UUIDs of GPUs that a machine check uses.
    """

    def __init__(
        self,
        runs_dir: Path,
        cpu_ranks: int | None,
        own_processes: OwnProcesses = dict,
        being_checked: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._owners = Owners(runs_dir)
        self._own_processes = own_processes
        self._being_checked = being_checked
        self.cpu_ranks = cpu_ranks

    def sample(self) -> DeviceSnapshot:
        """Return the current devices and their users."""
        visible = nvml.visible_gpus()
        own_processes = functools.cache(
            self._own_processes
        )  # called only if a GPU has other processes, and once per sample
        return DeviceSnapshot(
            gpus=tuple(GrantedGpu(index=gpu.index, uuid=gpu.uuid) for gpu in visible),
            users={gpu.uuid: self._users_of(gpu, own_processes) for gpu in visible},
            cpu_ranks=self.cpu_ranks,
            being_checked=frozenset(self._being_checked()),
            note=_unusable_gpus_note(bool(visible)),
        )

    def _users_of(self, gpu: nvml.VisibleGpu, own_processes: OwnProcesses) -> Users:
        if gpu.handle is None:
            return NO_USERS
        runs, other_programs = set(), []
        for process in nvml.gpu_processes(gpu.handle) or []:
            if process.draws:
                continue  # a desktop leaves enough memory for a run
            run_id = self._owners.run_of(process.pid)
            if run_id is not None:
                runs.add(run_id)
            elif not _is_own_process(process.pid, own_processes()):
                other_programs.append(_describe_process(process))
        return Users(runs=frozenset(runs), other_programs=tuple(other_programs))


def _is_own_process(pid: int, own_processes: Mapping[int, float]) -> bool:
    """Return True if a process belongs to the page. The start time detects a reused PID."""
    info = processes.inspect(pid)
    return info is not None and info.started_unix_s == own_processes.get(pid)


def _describe_process(process: nvml.GpuProcess) -> str:
    info = processes.inspect(process.pid)
    name = (process.name if info is None else info.name) or "a process"
    user = None if info is None else info.user
    return f"{name} of {user} (pid {process.pid})" if user else f"{name} (pid {process.pid})"


def _unusable_gpus_note(has_gpus: bool) -> str | None:
    if (obstacle := cuda_environment.obstacle()) is not None:
        return f"No GPU can be used. {obstacle.reason} {obstacle.remedy}"
    if not has_gpus or nvml.sees_all_processes():
        return None
    return (
        "This page runs in a container or in WSL2 and cannot see programs outside of it, which may use a GPU."
    )


MAX_NAME_LENGTH = 100


IntegerLimit = Annotated[int, Limit(low=1, high=10**18, words="a whole number above 0")] | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one user; None means unlimited.

    Attributes:
        num_ranks: GPUs and CPU ranks in use at the same time, over all live runs.
        minutes_per_run: time limit of a run, which is then stopped after saving a checkpoint.
        disk_bytes: total size of the stored runs above which no run starts.
        num_waiting: number of queued runs.
    """

    num_ranks: IntegerLimit = None
    minutes_per_run: Annotated[float, Limit(low=1e-9, high=1e18, words="a number above 0")] | None = None
    disk_bytes: IntegerLimit = None
    num_waiting: IntegerLimit = None


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The default limits, and individual limits by user name."""

    everybody: Limits = NO_LIMITS
    people: Mapping[str, Limits] = field(default_factory=dict)

    def limits_of(self, person: str) -> Limits:
        """Return the limits of a user."""
        return self.people.get(person, self.everybody)

    @property
    def has_time_limit(self) -> bool:
        """True if any user's runs have a time limit."""
        return any(limits.minutes_per_run is not None for limits in (self.everybody, *self.people.values()))

    def changed(self, person: str | None, limits: Limits | None) -> Rules:
        """Return a copy with different limits: of a user (None removes them), or the default limits."""
        if person is None:
            return Rules(everybody=limits or NO_LIMITS, people=self.people)
        limits_by_name = {name: value for name, value in self.people.items() if name != person}
        return Rules(
            everybody=self.everybody,
            people=limits_by_name if limits is None else limits_by_name | {person: limits},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values."""
        people = {name: asdict(limits) for name, limits in sorted(self.people.items())}
        return {"everybody": asdict(self.everybody), "people": people}


def validate_name(name: Any) -> str | None:
    """Validate the name of a user whose limits are set; None selects the default limits.

    Raises:
        ValueError: if it is not a valid account name.
    """
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(
            f"person is {str(name)[:80]!r}; allowed: a user's name, or null for the default limits"
        )
    return name


# Time for which later runs may overtake a run that does not fit; then its device kind is reserved for it.
RESERVE_AFTER_S = 600.0
# Time window of the usage that affects the order of the queue.
USAGE_WINDOW_S = 3600.0

RULE = (
    "The first run in the queue that fits starts next. Priority goes to the user with the fewest GPUs or "
    "CPU ranks in use, then to the user with the least use in the last hour, then to the earlier request. "
    "After a run has waited ten minutes, no run behind it may start before it."
)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A queued run. If `may_share`, it can use GPUs that other programs use."""

    run_id: str
    person: str
    kind: DeviceKind
    num_ranks: int
    asked_unix_s: float
    may_share: bool = False


@dataclass(frozen=True, kw_only=True)
class Running:
    """A live run and its GPUs, by UUID."""

    run_id: str
    person: str
    kind: DeviceKind
    num_ranks: int
    began_unix_s: float
    gpus: tuple[str, ...] = ()
    num_threads: int = 1

    @property
    def num_cores(self) -> int:
        """Number of CPU cores used by ranks on the CPU: one per thread."""
        return self.num_ranks * self.num_threads


@dataclass(frozen=True, kw_only=True)
class UsagePeriod:
    """A past period in which a user occupied a number of GPUs or CPU ranks."""

    person: str
    num_ranks: int
    began_unix_s: float
    ended_unix_s: float


@dataclass(frozen=True, kw_only=True)
class Allocatable:
    """What can be allocated: GPUs by UUID, and CPU ranks (None: unlimited).

    GPUs `being_checked` are never shared, and are allocated only after the machine check ends. Each CPU rank
    gets `num_threads` threads.
    """

    gpus: tuple[str, ...] = ()
    occupied: frozenset[str] = frozenset()
    cpu_ranks: int | None = None
    being_checked: frozenset[str] = frozenset()
    num_threads: int = 1

    def num_cores(self, num_ranks: int) -> int:
        """Return a run's cost in CPU ranks: one per thread, limited to the total if the ranks fit."""
        num_cores = num_ranks * self.num_threads
        return num_cores if self.cpu_ranks is None else max(num_ranks, min(num_cores, self.cpu_ranks))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Input of the scheduling rule. `first` lists the runs that a teacher moved to the head, in order."""

    waiting: Sequence[Waiting] = ()
    running: Sequence[Running] = ()
    capacity: Allocatable = field(default_factory=Allocatable)
    rules: Rules = field(default_factory=Rules)
    ended: Sequence[UsagePeriod] = ()
    first: Sequence[str] = ()
    is_paused: bool = False


@dataclass(frozen=True, kw_only=True)
class StartDecision:
    """A decision to start a run now, on these GPUs."""

    run_id: str
    gpus: tuple[str, ...] = ()


@dataclass
class Free:
    """The free devices while starts are chosen. A `closed` kind is reserved for a queued run."""

    gpus: list[str]
    shared_gpus: list[str]
    cpu_ranks: int | None
    capacity: Allocatable
    reserved_kinds: set[DeviceKind] = field(default_factory=set)

    @classmethod
    def of(cls, situation: Situation) -> Free:
        """Return the devices that no live run holds."""
        capacity = situation.capacity
        held_gpus = {gpu for run in situation.running for gpu in run.gpus} | capacity.being_checked
        gpus = [gpu for gpu in capacity.gpus if gpu not in held_gpus]
        used_cores = sum(run.num_cores for run in situation.running if run.kind == "cpu")
        return cls(
            gpus=[gpu for gpu in gpus if gpu not in capacity.occupied],
            shared_gpus=[gpu for gpu in gpus if gpu in capacity.occupied],
            cpu_ranks=None if capacity.cpu_ranks is None else capacity.cpu_ranks - used_cores,
            capacity=capacity,
        )

    def take(self, run: Waiting) -> StartDecision | None:
        """Allocate a run's devices; None if they are not available."""
        if run.kind in self.reserved_kinds:
            return None
        if run.kind == "cpu":
            if self.cpu_ranks is not None:
                num_cores = self.capacity.num_cores(run.num_ranks)
                if self.cpu_ranks < num_cores:
                    return None
                self.cpu_ranks -= num_cores
            return StartDecision(run_id=run.run_id)
        # Unoccupied GPUs come first.
        usable = usable_gpus(self.gpus + (self.shared_gpus if run.may_share else []), run.num_ranks)
        if len(usable) < run.num_ranks:
            return None
        taken = tuple(usable[: run.num_ranks])
        self.gpus = [gpu for gpu in self.gpus if gpu not in taken]
        self.shared_gpus = [gpu for gpu in self.shared_gpus if gpu not in taken]
        return StartDecision(run_id=run.run_id, gpus=taken)


def decide(situation: Situation, now_unix_s: float) -> list[StartDecision]:
    """Return the runs to start now, in queue order."""
    if situation.is_paused:
        return []
    free, num_ranks_in_use = Free.of(situation), ranks_in_use(situation.running)
    starts = []
    for run in queue_order(situation, now_unix_s):
        if exceeds_limit(run, num_ranks_in_use, situation.rules):
            continue  # waits until its owner's other runs end, without blocking other users
        start = free.take(run)
        if start is not None:
            starts.append(start)
            num_ranks_in_use[run.person] += run.num_ranks
        elif now_unix_s - run.asked_unix_s >= RESERVE_AFTER_S and could_fit(run, situation.capacity):
            # Reserve the run's device kind, so that runs behind it cannot delay it any longer.
            free.reserved_kinds.add(run.kind)
    return starts


def queue_order(situation: Situation, now_unix_s: float) -> list[Waiting]:
    """Return the queue in order: runs that a teacher moved to the head, then by least usage.

    The rule repeatedly takes the oldest run of the user who occupies the fewest ranks, counting runs that are
    already ordered. Ties go to the user with less usage in the last hour, then to the older request.
    """
    by_id = {run.run_id: run for run in situation.waiting}
    order = [by_id.pop(run_id) for run_id in situation.first if run_id in by_id]
    num_ranks_in_use = ranks_in_use(situation.running)
    for run in order:
        num_ranks_in_use[run.person] += run.num_ranks
    recent_minutes = recent_usage(situation, now_unix_s)
    queues: dict[str, list[Waiting]] = {}
    for run in sorted(by_id.values(), key=lambda run: (run.asked_unix_s, run.run_id), reverse=True):
        queues.setdefault(run.person, []).append(run)
    while queues:
        person = min(
            queues,
            key=lambda name: (
                num_ranks_in_use[name],
                recent_minutes[name],
                queues[name][-1].asked_unix_s,
                name,
            ),
        )
        run = queues[person].pop()
        order.append(run)
        num_ranks_in_use[person] += run.num_ranks
        if not queues[person]:
            del queues[person]
    return order


def ranks_in_use(running: Iterable[Running]) -> Counter[str]:
    """Return the number of GPUs and CPU ranks that each user occupies now."""
    num_ranks_in_use: Counter[str] = Counter()
    for run in running:
        num_ranks_in_use[run.person] += run.num_ranks
    return num_ranks_in_use


def recent_usage(situation: Situation, now_unix_s: float) -> Counter[str]:
    """Return each user's usage in the last hour, in rank-minutes."""
    usage_s: dict[str, float] = {}
    spans = [(span.person, span.num_ranks, span.began_unix_s, span.ended_unix_s) for span in situation.ended]
    spans += [(run.person, run.num_ranks, run.began_unix_s, now_unix_s) for run in situation.running]
    for person, num_ranks, start_unix_s, end_unix_s in spans:
        overlap_s = min(end_unix_s, now_unix_s) - max(start_unix_s, now_unix_s - USAGE_WINDOW_S)
        usage_s[person] = usage_s.get(person, 0.0) + num_ranks * max(0.0, overlap_s)
    # Round to minutes, so that a difference of a second does not reorder the queue.
    return Counter({person: round(seconds / 60) for person, seconds in usage_s.items()})


def exceeds_limit(run: Waiting, num_ranks_in_use: Mapping[str, int], rules: Rules) -> bool:
    """Return True if the run would exceed its owner's limit of concurrent ranks."""
    limit = rules.limits_of(run.person).num_ranks
    return limit is not None and num_ranks_in_use.get(run.person, 0) + run.num_ranks > limit


def could_fit(run: Waiting, capacity: Allocatable) -> bool:
    """Return True if the run would fit on the machine without other live runs."""
    if run.kind == "cpu":
        return capacity.cpu_ranks is None or run.num_ranks <= capacity.cpu_ranks
    usable = [gpu for gpu in capacity.gpus if run.may_share or gpu not in capacity.occupied]
    return run.num_ranks <= len(usable_gpus(usable, run.num_ranks))


def usable_gpus(gpus: Sequence[str], num_ranks: int) -> list[str]:
    """Return the GPUs that a run can use together. NCCL supports only one MIG instance per run."""
    return [gpu for gpu in gpus if num_ranks == 1 or not gpu.startswith(cuda_environment.MIG)]
