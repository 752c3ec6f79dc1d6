"""What the line hands out on this machine, and who is on which GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_gui.machine_report.owners import Owners
from trainers.contract import cuda_environment, gpu_signs, hardware, processes
from trainers.contract.tickets import GrantedGpu

# Gives processes by number, with when each was started.
Waiting = Callable[[], Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class Users:
    """Who computes on a GPU: runs of ours by id, and somebody else's processes in words."""

    runs: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()


NOBODY = Users()


@dataclass(frozen=True, kw_only=True)
class DevicesNow:
    """The GPUs a run started here could have, who is on them, and the CPU ranks; None is no limit.

    `note` says what stands in the way of GPUs, or of seeing who is on them.
    """

    gpus: tuple[GrantedGpu, ...] = ()
    users: Mapping[str, Users]
    cpu_ranks: int | None = None
    note: str | None = None

    def users_of(self, uuid: str) -> Users:
        """Return who computes on a GPU."""
        return self.users.get(uuid, NOBODY)

    def gpus_of(self, run_id: str) -> tuple[str, ...]:
        """Return the GPUs on which a run's processes were seen."""
        return tuple(gpu.uuid for gpu in self.gpus if run_id in self.users_of(gpu.uuid).runs)


class Devices:
    """Looks at the machine's GPUs; the CPU ranks are as many as the page was told to hand out.

    Args:
        waiting: the processes of the ranks that wait for a run, with when each was started: nobody's.
    """

    def __init__(self, runs_dir: Path, cpu_ranks: int | None, waiting: Waiting = dict) -> None:
        self._owners = Owners(runs_dir)
        self._waiting = waiting
        self.cpu_ranks = cpu_ranks

    def look(self) -> DevicesNow:
        """Return what there is now."""
        visible = hardware.visible_gpus()
        waiting = functools.cache(self._waiting)  # is asked where there are others, and once a look
        return DevicesNow(
            gpus=tuple(GrantedGpu(index=gpu.index, uuid=gpu.uuid) for gpu in visible),
            users={gpu.uuid: self._users_of(gpu, waiting) for gpu in visible},
            cpu_ranks=self.cpu_ranks,
            note=_note(bool(visible)),
        )

    def _users_of(self, gpu: hardware.VisibleGpu, waiting: Waiting) -> Users:
        if gpu.handle is None:
            return NOBODY
        runs, others = set(), []
        for process in hardware.gpu_processes(gpu.handle) or []:
            if process.draws:
                continue  # a desktop leaves room for a run
            run_id = self._owners.run_of(process.pid)
            if run_id is not None:
                runs.add(run_id)
            elif not _waits_for_a_run(process.pid, waiting()):
                others.append(_in_words(process))
        return Users(runs=frozenset(runs), others=tuple(others))


def _waits_for_a_run(pid: int, waiting: Mapping[int, float]) -> bool:
    """Tell whether a process is one of those that wait for a run, and not another with its number."""
    facts = processes.look_at(pid)
    return facts is not None and facts.started_unix_s == waiting.get(pid)


def _in_words(process: hardware.GpuProcess) -> str:
    facts = processes.look_at(process.pid)
    name = (process.name if facts is None else facts.name) or "a process"
    user = None if facts is None else facts.user
    return f"{name} of {user} (pid {process.pid})" if user else f"{name} (pid {process.pid})"


def _note(has_gpus: bool) -> str | None:
    if (obstacle := cuda_environment.obstacle()) is not None:
        return f"No GPU is handed out. {obstacle.reason} {obstacle.remedy}"
    if not has_gpus or gpu_signs.sees_all_processes():
        return None
    return (
        "This page runs in a container, where programs outside it cannot be seen: a GPU that is handed out "
        "may be in use."
    )
