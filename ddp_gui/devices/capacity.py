"""What an engine offers a run: GPUs, or ranks on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config import Config
from trainers.contract.status import LOCAL
from trainers.engines import registry
from trainers.engines.base import Engine
from trainers.engines.reports import THIS_MACHINE
from trainers.machine import cuda_environment, hardware
from trainers.machine.cuda_environment import Obstacle

FEWEST_CPU_RANKS_OFFERED = 4
RANKS_BY_DEFAULT = 2
MIG_RULE = "MIG instances: CUDA gives a process one, and NCCL refuses ranks that share a GPU"
# Some may wait for a disk or the network; each takes the memory of an interpreter with torch.
FEWEST_LOADER_PROCESSES_OFFERED = 16
LOADER_PROCESSES_PER_CORE = 4


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How many ranks a run can have, and of which kind."""

    num_gpus: int
    num_cores: int
    # With so many GPUs and cores each.
    num_nodes: int = 1
    # GPUs in use now: by other programs, and by runs or checks of this page.
    num_gpus_of_others: int = 0
    num_gpus_of_runs: int = 0
    # Of each node; None: all. Of the instances of a divided GPU (MIG) a run gets one.
    most_gpus_per_run: int | None = None
    gpu_names: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    # The lowest compute capability of the GPUs.
    gpu_capability: tuple[int, int] | None = None
    # Of each GPU now; empty where it is not known.
    gpu_free_bytes: tuple[int, ...] = ()
    memory_bytes: int | None = None
    # The CPU multiplies bf16 numbers itself; None: not known.
    cpu_has_bf16: bool | None = None
    # How many CPU ranks the queue allocates at once; None is no limit.
    most_cpu_ranks: int | None = None
    # Why GPUs that are there cannot be used; they are not counted.
    gpu_obstacle: Obstacle | None = None
    # What has them, for a sentence.
    place: str = THIS_MACHINE
    has_more_ranks_than_cores: bool = True
    # With logins others use the machine, too.
    has_login: bool = False

    @property
    def max_loader_processes(self) -> int:
        """The most loader processes of a run: with logins the cores, otherwise a few for each core."""
        if self.has_login:
            return self.num_cores
        return max(FEWEST_LOADER_PROCESSES_OFFERED, LOADER_PROCESSES_PER_CORE * self.num_cores)

    @property
    def max_cpu_ranks(self) -> int:
        """One rank per core, but where cores may be shared at least four, to try out the effect of more."""
        most = max(FEWEST_CPU_RANKS_OFFERED * self.has_more_ranks_than_cores, self.num_cores)
        return most if self.most_cpu_ranks is None else min(most, self.most_cpu_ranks)

    def device_kind(self, wanted: str) -> str:
        """Return `cuda` or `cpu` for a configuration's `device`."""
        if wanted == "auto":
            return "cuda" if self.num_gpus else "cpu"
        return wanted

    def max_ranks(self, wanted: str) -> int:
        """Return the most ranks of a configuration's `device`."""
        if self.device_kind(wanted) != "cuda":
            return self.max_cpu_ranks
        return self.num_gpus if self.most_gpus_per_run is None else self.most_gpus_per_run

    def default_ranks(self, wanted: str = "auto") -> int:
        """Return the ranks a run has by default: the free GPUs, at least one; on the CPU two.

        Of a node that others wait for, too, it takes two GPUs.
        """
        if self.device_kind(wanted) == "cuda":
            free = self.num_gpus - self.num_gpus_of_others - self.num_gpus_of_runs
            if self.place != THIS_MACHINE:
                free = min(RANKS_BY_DEFAULT, free)
            return max(1, min(free, self.max_ranks(wanted)))
        return min(RANKS_BY_DEFAULT, self.max_cpu_ranks)

    def gpu_use(self) -> str:
        """Return how many GPUs are in use by whom and how many a run may have; empty: all are free."""
        programs = "another program" if self.num_gpus_of_others == 1 else "other programs"
        parts = [
            f"{num} in use by {whom}"
            for num, whom in (
                (self.num_gpus_of_others, programs),
                (self.num_gpus_of_runs, "runs or checks of this page"),
            )
            if num
        ]
        if self.most_gpus_per_run is not None:
            parts.append(f"{self.most_gpus_per_run} per run ({MIG_RULE})")
        return ", ".join(parts)

    def memory_for_a_rank(self, wanted: str, num_ranks: int) -> int | None:
        """Return the bytes a rank can have: the smallest GPU's, or its share of the machine's memory."""
        if self.device_kind(wanted) == "cuda":
            return self.gpu_memory_bytes
        return None if self.memory_bytes is None else self.memory_bytes // num_ranks

    def free_for_a_rank(self, wanted: str, num_ranks: int) -> int | None:
        """Return the bytes that are free now on the fullest of the GPUs that so many ranks would get.

        They get those with the most free memory. None on the CPU and where it is not known.
        """
        if self.device_kind(wanted) != "cuda" or not 0 < num_ranks <= len(self.gpu_free_bytes):
            return None
        return sorted(self.gpu_free_bytes, reverse=True)[num_ranks - 1]

    def describe(self) -> str:
        """Describe the devices in a sentence."""
        cores = f"{self.num_cores} CPU core{'s' if self.num_cores != 1 else ''}"
        if self.num_nodes > 1:
            gpus = f"{self.num_gpus} GPU{'s' if self.num_gpus != 1 else ''} and " if self.num_gpus else ""
            return f"A cluster of {self.num_nodes} machines, each with {gpus}at least {cores}."
        if self.place != THIS_MACHINE:
            names = f" ({', '.join(sorted(set(self.gpu_names)))})" if self.gpu_names else ""
            gpus = (
                f"{self.num_gpus} GPU{'s' if self.num_gpus != 1 else ''}{names} and " if self.num_gpus else ""
            )
            return f"{self.place[0].upper()}{self.place[1:]} has {gpus}{cores}."
        if self.gpu_obstacle is not None:
            why = f"{self.gpu_obstacle.reason} {self.gpu_obstacle.remedy}"
            return f"The GPUs here cannot be used, so ranks run on the CPU ({cores}). {why}"
        if self.num_gpus == 0:
            return f"No GPU here: ranks run on the CPU ({cores}), each a process of its own."
        names = ", ".join(sorted(set(self.gpu_names))) or "GPU"
        gpus = f"{self.num_gpus} GPU{'s' if self.num_gpus != 1 else ''} ({names})"
        return f"{', '.join(filter(None, (gpus, self.gpu_use(), cores)))}."


def read(engine: Engine | None = None, config: Config | None = None) -> Machine:
    """Ask an engine what it can give a run.

    Args:
        engine: None: that of this machine.
        config: of the run, where it names a place; None: any run.
    """
    engine = engine or registry.named(LOCAL)
    offered = engine.capacity() if config is None else engine.capacity_for(config)
    return Machine(
        num_gpus=offered.num_gpus,
        num_cores=offered.num_cores,
        num_nodes=offered.num_nodes,
        most_gpus_per_run=offered.most_gpus_per_run,
        gpu_names=offered.gpu_names,
        gpu_memory_bytes=offered.gpu_memory_bytes,
        gpu_capability=offered.gpu_capability,
        gpu_free_bytes=offered.gpu_free_bytes,
        memory_bytes=offered.memory_bytes,
        cpu_has_bf16=offered.cpu_has_bf16,
        gpu_obstacle=_obstacle(offered.num_gpus) if engine.name == LOCAL else None,
        place=offered.place,
        has_more_ranks_than_cores=offered.has_more_ranks_than_cores,
    )


def _obstacle(num_gpus: int) -> Obstacle | None:
    """Return why the GPUs of this machine cannot be used: torch cannot, or NVML does not list them."""
    found = cuda_environment.obstacle()
    if found is None and num_gpus == 0 and hardware.nvml_problem() is not None:
        reason = hardware.telemetry_problem()
        found = (
            None if reason is None else Obstacle(reason=reason, remedy="The Machine page says what to do.")
        )
    return found
