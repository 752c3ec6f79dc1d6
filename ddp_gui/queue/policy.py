"""Which run starts next: pure scheduling policy, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_gui.queue.person_limits import Rules
from trainers.contract.tickets import DeviceKind
from trainers.machine import cuda_environment

# A run that does not fit yet may be overtaken for this long.
PATIENCE_S = 600.0
# Older use of the machine does not count.
LATELY_S = 3600.0

RULE = (
    "The next run is the first in the queue that fits. The order: first the person who uses the fewest GPUs "
    "or CPU ranks now, then the one who used the least in the last hour, then the one who asked first. After "
    "a run has waited ten minutes, no run behind it may start before it."
)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A queued run; `may_share` allows GPUs that other programs use."""

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
        """The cores that its ranks on the CPU use: each thread counts."""
        return self.num_ranks * self.num_threads


@dataclass(frozen=True, kw_only=True)
class Span:
    """A person used that many GPUs or CPU ranks during this time."""

    person: str
    num_ranks: int
    began_unix_s: float
    ended_unix_s: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What can be allocated: GPUs by UUID, and CPU ranks (None is no limit). GPUs `being_checked` are
    allocated only after the check of this machine, and never shared. A CPU rank gets `num_threads`.
    """

    gpus: tuple[str, ...] = ()
    occupied: frozenset[str] = frozenset()
    cpu_ranks: int | None = None
    being_checked: frozenset[str] = frozenset()
    num_threads: int = 1

    def num_cores(self, num_ranks: int) -> int:
        """Return the CPU ranks that a run counts as: one per thread, at most all if its ranks alone fit."""
        num_cores = num_ranks * self.num_threads
        return num_cores if self.cpu_ranks is None else max(num_ranks, min(num_cores, self.cpu_ranks))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The input of the rule; `first` are the runs that a teacher has put at the head, in order."""

    waiting: Sequence[Waiting] = ()
    running: Sequence[Running] = ()
    capacity: Capacity = field(default_factory=Capacity)
    rules: Rules = field(default_factory=Rules)
    ended: Sequence[Span] = ()
    first: Sequence[str] = ()
    is_paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run to be started now, on these GPUs."""

    run_id: str
    gpus: tuple[str, ...] = ()


@dataclass
class Free:
    """What is free while starts are chosen; a kind that is reserved for a queued run is `closed`."""

    gpus: list[str]
    shared_gpus: list[str]
    cpu_ranks: int | None
    capacity: Capacity
    closed: set[DeviceKind] = field(default_factory=set)

    @classmethod
    def of(cls, situation: Situation) -> Free:
        """Return what is not in use."""
        capacity = situation.capacity
        held = {gpu for run in situation.running for gpu in run.gpus} | capacity.being_checked
        gpus = [gpu for gpu in capacity.gpus if gpu not in held]
        on_cpu = sum(run.num_cores for run in situation.running if run.kind == "cpu")
        return cls(
            gpus=[gpu for gpu in gpus if gpu not in capacity.occupied],
            shared_gpus=[gpu for gpu in gpus if gpu in capacity.occupied],
            cpu_ranks=None if capacity.cpu_ranks is None else capacity.cpu_ranks - on_cpu,
            capacity=capacity,
        )

    def take(self, run: Waiting) -> Start | None:
        """Allocate what a run needs; None if it is not available."""
        if run.kind in self.closed:
            return None
        if run.kind == "cpu":
            if self.cpu_ranks is not None:
                num_cores = self.capacity.num_cores(run.num_ranks)
                if self.cpu_ranks < num_cores:
                    return None
                self.cpu_ranks -= num_cores
            return Start(run_id=run.run_id)
        # Unused ones come first.
        usable = together(self.gpus + (self.shared_gpus if run.may_share else []), run.num_ranks)
        if len(usable) < run.num_ranks:
            return None
        taken = tuple(usable[: run.num_ranks])
        self.gpus = [gpu for gpu in self.gpus if gpu not in taken]
        self.shared_gpus = [gpu for gpu in self.shared_gpus if gpu not in taken]
        return Start(run_id=run.run_id, gpus=taken)


def decide(situation: Situation, now_unix_s: float) -> list[Start]:
    """Return the runs to start now, from the head of the queue on."""
    if situation.is_paused:
        return []
    free, held = Free.of(situation), ranks_held(situation.running)
    starts = []
    for run in in_order(situation, now_unix_s):
        if exceeds_limit(run, held, situation.rules):
            continue  # it waits for its own person's runs and blocks nobody else
        start = free.take(run)
        if start is not None:
            starts.append(start)
            held[run.person] += run.num_ranks
        elif now_unix_s - run.asked_unix_s >= PATIENCE_S and could_fit(run, situation.capacity):
            free.closed.add(run.kind)
    return starts


def in_order(situation: Situation, now_unix_s: float) -> list[Waiting]:
    """Return the queue in order: first the runs a teacher has put there, then by the least use."""
    by_id = {run.run_id: run for run in situation.waiting}
    line = [by_id.pop(run_id) for run_id in situation.first if run_id in by_id]
    held = ranks_held(situation.running)
    for run in line:
        held[run.person] += run.num_ranks
    used = used_lately(situation, now_unix_s)
    queues: dict[str, list[Waiting]] = {}
    for run in sorted(by_id.values(), key=lambda run: (run.asked_unix_s, run.run_id), reverse=True):
        queues.setdefault(run.person, []).append(run)
    while queues:
        person = min(queues, key=lambda who: (held[who], used[who], queues[who][-1].asked_unix_s, who))
        run = queues[person].pop()
        line.append(run)
        held[person] += run.num_ranks
        if not queues[person]:
            del queues[person]
    return line


def ranks_held(running: Iterable[Running]) -> Counter[str]:
    """Return how many GPUs and CPU ranks each person uses now."""
    held: Counter[str] = Counter()
    for run in running:
        held[run.person] += run.num_ranks
    return held


def used_lately(situation: Situation, now_unix_s: float) -> Counter[str]:
    """Return the seconds × ranks of each person within the last hour, in whole minutes."""
    used: dict[str, float] = {}
    spans = [(span.person, span.num_ranks, span.began_unix_s, span.ended_unix_s) for span in situation.ended]
    spans += [(run.person, run.num_ranks, run.began_unix_s, now_unix_s) for run in situation.running]
    for person, num_ranks, began, ended in spans:
        overlap_s = min(ended, now_unix_s) - max(began, now_unix_s - LATELY_S)
        used[person] = used.get(person, 0.0) + num_ranks * max(0.0, overlap_s)
    # In whole minutes: a difference of a second must not reorder the queue.
    return Counter({person: round(seconds / 60) for person, seconds in used.items()})


def exceeds_limit(run: Waiting, held: Mapping[str, int], rules: Rules) -> bool:
    """Tell whether a person would exceed their limit of concurrent ranks."""
    most = rules.of(run.person).num_ranks
    return most is not None and held.get(run.person, 0) + run.num_ranks > most


def could_fit(run: Waiting, capacity: Capacity) -> bool:
    """Tell whether a run would fit if no other run were live."""
    if run.kind == "cpu":
        return capacity.cpu_ranks is None or run.num_ranks <= capacity.cpu_ranks
    usable = [gpu for gpu in capacity.gpus if run.may_share or gpu not in capacity.occupied]
    return run.num_ranks <= len(together(usable, run.num_ranks))


def together(gpus: Sequence[str], num_ranks: int) -> list[str]:
    """Return the GPUs that a run of so many ranks can use: MIG instances only alone (NCCL refuses them)."""
    return [gpu for gpu in gpus if num_ranks == 1 or not gpu.startswith(cuda_environment.MIG)]
