"""What an engine says of itself: what there is to train on, what it asks for, its queue and its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainers.contract.status import Handle

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
