"""The partitions of a cluster: their nodes, what is free on them, and what they can give one job."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainers.engines.slurm import durations

# With widths of our own, because Slurm cuts what is longer, and separators, because names may have blanks.
COLUMNS = (
    "Partition:200", "Available:40", "Nodes:40", "StateLong:80", "CPUs:40", "Memory:40", "Time:40",
    "Size:40", "Gres:1000", "GresUsed:1000",
)  # fmt: skip
# Such a node starts jobs, now or when those on it have ended; "~" is one that is switched on when needed.
_UP = re.compile(r"(idle|mixed|allocated|completing|planned)[~#+-]?")
_IDLE = re.compile(r"(idle|planned)[~-]?")
_NOTE = re.compile(r"\([^)]*\)")
ANY_TYPE = ""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of a partition that are alike.

    Attributes:
        num_cores, memory_bytes: of each.
        gpus, gpus_used: on each, by type; "" is a GPU without one.
    """

    num_nodes: int
    is_up: bool
    is_idle: bool
    num_cores: int
    memory_bytes: int
    gpus: Mapping[str, int]
    gpus_used: Mapping[str, int]

    def num_gpus(self, kind: str) -> int:
        """Return how many GPUs of a type each has; of any type where none is named."""
        return sum(self.gpus.values()) if kind == ANY_TYPE else self.gpus.get(kind, 0)

    def num_free_gpus(self, kind: str) -> int:
        """Return how many GPUs of a type are free on all of them together."""
        if not self.is_up:
            return 0
        used = self.gpus_used
        in_use = sum(used.values()) if kind == ANY_TYPE else used.get(kind, 0)
        return self.num_nodes * max(0, self.num_gpus(kind) - in_use)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Some nodes that jobs can be sent to.

    Attributes:
        is_up: jobs start there now; otherwise they wait.
        time_limit_s: of one job; infinite where there is none.
        max_nodes: of one job; None where only the number of its nodes limits it.
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
    def most_nodes(self) -> int:
        """How many nodes one job may have."""
        return self.num_nodes if self.max_nodes is None else min(self.max_nodes, self.num_nodes)

    @property
    def num_idle(self) -> int:
        return sum(group.num_nodes for group in self.groups if group.is_idle)

    @property
    def num_cores(self) -> int:
        """The cores of its smallest node."""
        return min((group.num_cores for group in self.groups), default=0)

    @property
    def memory_bytes(self) -> int:
        """The memory of its smallest node."""
        return min((group.memory_bytes for group in self.groups), default=0)

    def gpu_types(self) -> list[str]:
        """Return the types of its GPUs; empty where it has none, "" among them where one has no type."""
        return sorted({kind for group in self.groups for kind, count in group.gpus.items() if count})

    def gpus(self, kind: str = ANY_TYPE) -> tuple[int, int]:
        """Return how many GPUs of a type are free now, and how many there are."""
        free = sum(group.num_free_gpus(kind) for group in self.groups)
        return free, sum(group.num_nodes * group.num_gpus(kind) for group in self.groups)

    def most_on(self, num_nodes: int, each: Callable[[NodeGroup], int]) -> int:
        """Return how much of something so many of its nodes all have; 0 where there are too few nodes."""
        counts = sorted(
            (each(group) for group in self.groups for _ in range(min(group.num_nodes, num_nodes))),
            reverse=True,
        )
        return counts[num_nodes - 1] if 0 < num_nodes <= len(counts) else 0


def read(rows: Iterable[Sequence[str]]) -> list[Partition]:
    """Return the partitions of sinfo's rows, one for each kind and state of their nodes.

    Raises:
        ValueError: when a row is not as Slurm writes it.
    """
    by_name: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        by_name.setdefault(row[0], []).append(row)
    return [_partition(name, of_it) for name, of_it in by_name.items()]


def _partition(name: str, rows: Sequence[Sequence[str]]) -> Partition:
    _, available, _, _, _, _, limit, size, _, _ = rows[0]
    return Partition(
        name=name.removesuffix("*"),
        is_default=name.endswith("*"),
        is_up=available == "up",
        time_limit_s=durations.seconds(limit),
        max_nodes=_most_nodes(size),
        groups=tuple(_group(row) for row in rows if int(row[2])),
    )


def _group(row: Sequence[str]) -> NodeGroup:
    _, _, count, state, cores, memory, _, _, gres, used = row
    return NodeGroup(
        num_nodes=int(count),
        is_up=_UP.fullmatch(state) is not None,
        is_idle=_IDLE.fullmatch(state) is not None,
        num_cores=_number(cores),
        memory_bytes=_number(memory) * 2**20,
        gpus=gpus_of(gres),
        gpus_used=gpus_of(used),
    )


def gpus_of(gres: str) -> dict[str, int]:
    """Return the GPUs of a list of resources, by type: "gpu:a100:4(S:0-1),gpu:2,nvme:1" has 4 and 2."""
    found = Counter[str]()
    for entry in _NOTE.sub("", gres).split(","):
        name, *rest = entry.strip().split(":")
        if name != "gpu" or not rest or not rest[-1].isdecimal():
            continue
        # "(null)" is gone with the notes: a GPU in use whose type is not known has an empty one.
        found[":".join(rest[:-1])] += int(rest[-1])
    return dict(found)


def _most_nodes(size: str) -> int | None:
    """Return the most nodes of a job: "1-infinite" and "1-4" are written, and "1" alone."""
    most = size.rpartition("-")[2]
    return int(most) if most.isdecimal() else None


def _number(cell: str) -> int:
    """Return a number of a cell; "4+" is written where the nodes differ."""
    return int(cell.rstrip("+"))


def in_words(partition: Partition) -> str:
    """Return what a partition has and what is free of it, for a list to choose from."""
    plural = "" if partition.num_nodes == 1 else "s"
    said = [f"{partition.num_nodes} node{plural}, {partition.num_idle} idle"]
    for kind in partition.gpu_types():
        free, there = partition.gpus(kind)
        said.append(f"{free} of {there} {kind or 'GPU'}{' GPUs' if kind else 's'} free")
    if not partition.gpu_types():
        said.append("no GPUs")
    limit_s = partition.time_limit_s
    said.append("no time limit" if math.isinf(limit_s) else f"up to {durations.in_words(limit_s)}")
    if not partition.is_up:
        said.append("starts no jobs now")
    return f"{partition.name}: {'; '.join(said)}"
