"""Devices of this machine: which GPUs torch can use, their processes, and how many ranks fit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from trainers.contract.config import Config
from trainers.contract.rundir import is_run_id
from trainers.contract.status import LOCAL
from trainers.engines import registry
from trainers.engines.base import THIS_MACHINE, Capacity, Engine
from trainers.machine import cuda_environment, facilities, nvml, processes
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.processes import ProcessFacts

OURS = "trainers."
LOGS = "logs"
# Time for which a process is not cached: between fork and exec it has its parent's command line.
SETTLED_AFTER_S = 5.0
MAX_PARENTS = 50


class Owners:
    """Finds the runs of processes. Caches results that cannot change, to scan all processes cheaply."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir.resolve()
        self._known: dict[int, tuple[float, str | None]] = {}
        self._lock = threading.Lock()

    def run_of(self, pid: int) -> str | None:
        """Return the id of the run that a process belongs to, or None."""
        for _ in range(MAX_PARENTS):
            facts = processes.inspect(pid)
            if facts is None or pid <= 1:
                return None
            run_id = self._run_named_by(facts)
            if run_id is not None:
                return run_id
            pid = facts.parent_pid
        return None

    def live_runs(self) -> dict[str, list[int]]:
        """Return the processes of every live run of this page, by run id."""
        pids = set(processes.all_pids())
        found: dict[str, list[int]] = {}
        with self._lock:
            self._known = {pid: known for pid, known in self._known.items() if pid in pids}
            for pid in sorted(pids):
                run_id = self._remembered_run_of(pid)
                if run_id is not None:
                    found.setdefault(run_id, []).append(pid)
        return found

    def _remembered_run_of(self, pid: int) -> str | None:
        known = self._known.get(pid)
        if known is not None and known[1] is None:
            return None
        facts = processes.inspect(pid)
        if facts is None:
            return None
        if known is not None and known[0] == facts.started_unix_s:
            return known[1]
        run_id = self.run_of(pid)
        # Processes of the warm pool belong to no run yet.
        is_settled = time.time() - facts.started_unix_s > SETTLED_AFTER_S and not _is_ours(facts)
        if run_id is not None or is_settled:
            self._known[pid] = (facts.started_unix_s, run_id)
        return run_id

    def _run_named_by(self, facts: ProcessFacts) -> str | None:
        """Return the run of a process of this project, from its arguments or its log file."""
        if not _is_ours(facts):
            return None
        base = Path(facts.working_directory or "/")
        for word in facts.command_line[1:]:
            path = Path(base, word)
            if is_run_id(path.name) and path.parent.resolve() == self._runs_dir:
                return path.name
        output = processes.output_of(facts.pid)
        if output is not None and output.parent.name == LOGS and output.parents[2] == self._runs_dir:
            return output.parents[1].name
        return None


def _is_ours(facts: ProcessFacts) -> bool:
    command = facts.command_line
    return processes.title_of(command) is not None or any(word.startswith(OURS) for word in command)


MODULE = "trainers.parallel.usable_gpus"
# The form and the queue count the GPUs only once, when the page starts.
AGAIN = "Restart the page. If that does not help, restart the machine or reinstall NVIDIA's driver."

MAX_LAST_WORDS = 300


def restrict_to_usable_gpus(cache_file: Path | None) -> None:
    """Limit this process and its children to the usable GPUs.

    If the driver reports no GPUs, torch is not started.
    """
    visible = nvml.visible_gpus()
    if visible:
        divided = any(gpu.is_part for gpu in visible)
        known = () if divided else nvml.all_uuids()
        answer = _answer(cache_file)
        for name in answer.get("left_out", ()):
            print(f"{name} is not used, because this build of torch does not support it.", flush=True)
        os.environ.update(variables_for(answer, known))


def variables_for(answer: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Return the environment variables for this answer.

    Args:
        known: GPUs that can be selected by UUID; MIG instances keep their current selection.
    """
    if answer["obstacle"] is not None:
        return cuda_environment.with_obstacle(Obstacle(**answer["obstacle"]))
    uuids = answer["uuids"]
    return cuda_environment.only(uuids) if uuids and set(uuids) <= set(known) else {}


def _answer(cache_file: Path | None) -> Mapping[str, Any]:
    """Return the usable GPUs, from the cache if this machine has not changed since boot.

    Only a positive answer is cached: the cause of a negative one will probably be fixed soon.
    """
    machine = _machine()
    kept = trainer_process.read_cached(cache_file)
    if kept is not None and kept.get("machine") == machine:
        return kept
    print("Asking torch which GPUs it can use …", flush=True)
    try:
        answer = {**trainer_process.ask(MODULE, sees_gpus=True), "machine": machine}
    except AskError as error:
        print(f"{error}", flush=True)
        return {
            "obstacle": {"reason": f"torch could not list its GPUs: {_last_line(error)}", "remedy": AGAIN}
        }
    if answer["obstacle"] is None:
        trainer_process.write_cached(cache_file, answer)
    return answer


def _last_line(error: AskError) -> str:
    """Return the last line of the process's output, which is the error without its traceback."""
    line = str(error).strip().splitlines()[-1].strip()[:MAX_LAST_WORDS]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _machine() -> list[Any]:
    """Return the facts, other than files, that affect the answer: GPUs, driver, visible devices, boot."""
    boot = (facilities.read("/proc/sys/kernel/random/boot_id") or "").strip()
    named = [os.environ.get(name) for name in cuda_environment.OF_A_RUN]
    return [nvml.all_uuids(), list(nvml.driver_versions()), named, boot]


FEWEST_CPU_RANKS_OFFERED = 4
RANKS_BY_DEFAULT = 2
MIG_RULE = "a process can use only one MIG instance, and NCCL does not support ranks that share a GPU"
# Loader processes per core: more than one, because they may wait for a disk or the network, but each needs
# memory for torch.
FEWEST_LOADER_PROCESSES_OFFERED = 16
LOADER_PROCESSES_PER_CORE = 4


@dataclass(frozen=True, kw_only=True)
class Machine(Capacity):
    """The number and kind of ranks that a run can have: the engine's capacity, within the page's limits.

    Attributes:
        num_gpus_of_others, num_gpus_of_runs: GPUs in use by other programs, and by runs or checks of this
            page.
        most_cpu_ranks: Number of CPU ranks that the queue allocates at the same time; None: no limit.
        gpu_obstacle: Why existing GPUs, which are not counted, cannot be used.
        has_login: True if the page has logins, so other users share the machine.
    """

    num_nodes: int = 1
    num_gpus_of_others: int = 0
    num_gpus_of_runs: int = 0
    most_cpu_ranks: int | None = None
    gpu_obstacle: Obstacle | None = None
    has_login: bool = False

    @property
    def max_loader_processes(self) -> int:
        """Maximum number of loader processes: with login the number of cores, otherwise a few per core."""
        if self.has_login:
            return self.num_cores
        return max(FEWEST_LOADER_PROCESSES_OFFERED, LOADER_PROCESSES_PER_CORE * self.num_cores)

    @property
    def max_cpu_ranks(self) -> int:
        """One rank per core; at least four if ranks may share cores, so that users can try several."""
        most = max(FEWEST_CPU_RANKS_OFFERED * self.has_more_ranks_than_cores, self.num_cores)
        return most if self.most_cpu_ranks is None else min(most, self.most_cpu_ranks)

    def device_kind(self, wanted: str) -> str:
        """Return `cuda` or `cpu` for a configuration's `device`."""
        if wanted == "auto":
            return "cuda" if self.num_gpus else "cpu"
        return wanted

    def max_ranks(self, wanted: str) -> int:
        """Return the maximum number of ranks for a configuration's `device`."""
        if self.device_kind(wanted) != "cuda":
            return self.max_cpu_ranks
        return self.num_gpus if self.max_gpus_per_run is None else self.max_gpus_per_run

    def default_ranks(self, wanted: str = "auto") -> int:
        """Return the default number of ranks: the number of free GPUs, at least one; two on the CPU.

        On a shared node of a cluster, the default is at most two GPUs.
        """
        if self.device_kind(wanted) == "cuda":
            free = self.num_gpus - self.num_gpus_of_others - self.num_gpus_of_runs
            if self.place != THIS_MACHINE:
                free = min(RANKS_BY_DEFAULT, free)
            return max(1, min(free, self.max_ranks(wanted)))
        return min(RANKS_BY_DEFAULT, self.max_cpu_ranks)

    def gpu_use(self) -> str:
        """Return a text about GPUs in use and the limit per run; empty if neither applies."""
        programs = "another program" if self.num_gpus_of_others == 1 else "other programs"
        parts = [
            f"{num} in use by {whom}"
            for num, whom in (
                (self.num_gpus_of_others, programs),
                (self.num_gpus_of_runs, "runs or checks of this page"),
            )
            if num
        ]
        if self.max_gpus_per_run is not None:
            parts.append(f"{self.max_gpus_per_run} per run ({MIG_RULE})")
        return ", ".join(parts)

    def memory_for_a_rank(self, wanted: str, num_ranks: int) -> int | None:
        """Return the memory for a rank in bytes: of the smallest GPU, or a share of the machine's memory."""
        if self.device_kind(wanted) == "cuda":
            return self.gpu_memory_bytes
        return None if self.memory_bytes is None else self.memory_bytes // num_ranks

    def free_for_a_rank(self, wanted: str, num_ranks: int) -> int | None:
        """Return the free memory in bytes on the fullest of the GPUs that this number of ranks would get.

        Ranks get the GPUs with the most free memory. None on the CPU or if unknown.
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
            return f"This machine has no GPU: ranks run on the CPU ({cores}), each in a separate process."
        names = ", ".join(sorted(set(self.gpu_names))) or "GPU"
        gpus = f"{self.num_gpus} GPU{'s' if self.num_gpus != 1 else ''} ({names})"
        return f"{', '.join(filter(None, (gpus, self.gpu_use(), cores)))}."


def read(engine: Engine | None = None, config: Config | None = None) -> Machine:
    """Return the devices that an engine offers.

    Args:
        engine: None: this machine's engine.
        config: a run's configuration, which may select a partition; None: any run.
    """
    engine = engine or registry.get_engine(LOCAL)
    offered = engine.capacity(config)
    obstacle = _obstacle(offered.num_gpus) if engine.is_this_machine else None
    return Machine(**vars(offered), gpu_obstacle=obstacle)


def _obstacle(num_gpus: int) -> Obstacle | None:
    """Return why the GPUs of this machine cannot be used: by torch's answer, or because NVML lists none."""
    found = cuda_environment.obstacle()
    if found is None and num_gpus == 0 and nvml.nvml_problem() is not None:
        reason = nvml.telemetry_problem()
        found = (
            None if reason is None else Obstacle(reason=reason, remedy="See the Machine page for the remedy.")
        )
    return found
