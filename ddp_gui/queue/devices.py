"""What the queue allocates on this machine, and who uses which GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddp_gui.devices.process_owners import Owners
from trainers.contract.tickets import GrantedGpu
from trainers.machine import cuda_environment, gpu_signs, hardware, processes

# Returns processes by pid, with their start times.
Own = Callable[[], Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class Users:
    """Who computes on a GPU: our runs by id, and other processes in words."""

    runs: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()


NOBODY = Users()


@dataclass(frozen=True, kw_only=True)
class DevicesNow:
    """The GPUs that a run could get, who uses them, and the CPU ranks; None is no limit.

    `being_checked` are those that a check of this machine may use, by UUID: they are not allocated. `note`
    says why no GPU is usable, or why its users cannot be determined.
    """

    gpus: tuple[GrantedGpu, ...] = ()
    users: Mapping[str, Users]
    cpu_ranks: int | None = None
    being_checked: frozenset[str] = frozenset()
    note: str | None = None

    def users_of(self, uuid: str) -> Users:
        """Return who computes on a GPU."""
        return self.users.get(uuid, NOBODY)

    def gpus_of(self, run_id: str) -> tuple[str, ...]:
        """Return the GPUs that a run's processes use."""
        return tuple(gpu.uuid for gpu in self.gpus if run_id in self.users_of(gpu.uuid).runs)


class Devices:
    """Reads the machine's GPUs; the number of CPU ranks is an option of the page.

    Args:
        own: the page's own processes (warm workers, a check of this machine), with their start times: they do
            not count as another program's.
        being_checked: the GPUs that a check of this machine may use, by UUID.
    """

    def __init__(
        self,
        runs_dir: Path,
        cpu_ranks: int | None,
        own: Own = dict,
        being_checked: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._owners = Owners(runs_dir)
        self._own = own
        self._being_checked = being_checked
        self.cpu_ranks = cpu_ranks

    def sample(self) -> DevicesNow:
        """Return the devices as they are now."""
        visible = hardware.visible_gpus()
        own = functools.cache(self._own)  # read only if there are other processes, and once per sample
        return DevicesNow(
            gpus=tuple(GrantedGpu(index=gpu.index, uuid=gpu.uuid) for gpu in visible),
            users={gpu.uuid: self._users_of(gpu, own) for gpu in visible},
            cpu_ranks=self.cpu_ranks,
            being_checked=frozenset(self._being_checked()),
            note=_note(bool(visible)),
        )

    def _users_of(self, gpu: hardware.VisibleGpu, own: Own) -> Users:
        if gpu.handle is None:
            return NOBODY
        runs, others = set(), []
        for process in hardware.gpu_processes(gpu.handle) or []:
            if process.draws:
                continue  # a desktop leaves room for a run
            run_id = self._owners.run_of(process.pid)
            if run_id is not None:
                runs.add(run_id)
            elif not _is_own(process.pid, own()):
                others.append(_in_words(process))
        return Users(runs=frozenset(runs), others=tuple(others))


def _is_own(pid: int, own: Mapping[int, float]) -> bool:
    """Tell whether a process is one of the page's own, and not another with its number."""
    facts = processes.look_at(pid)
    return facts is not None and facts.started_unix_s == own.get(pid)


def _in_words(process: hardware.GpuProcess) -> str:
    facts = processes.look_at(process.pid)
    name = (process.name if facts is None else facts.name) or "a process"
    user = None if facts is None else facts.user
    return f"{name} of {user} (pid {process.pid})" if user else f"{name} (pid {process.pid})"


def _note(has_gpus: bool) -> str | None:
    if (obstacle := cuda_environment.obstacle()) is not None:
        return f"No GPU can be used. {obstacle.reason} {obstacle.remedy}"
    if not has_gpus or gpu_signs.sees_all_processes():
        return None
    return (
        "This page runs in a container or in WSL2, where programs outside it cannot be seen: a GPU that is "
        "handed out may be in use."
    )
