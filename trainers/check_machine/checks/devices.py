"""The devices of a check: idle GPUs, otherwise CPU ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from trainers.machine import cuda_environment, nvml
from trainers.machine.nvml import VisibleGpu

Kind = Literal["cuda", "cpu"]

CPU_RANKS = 2
MAX_GPUS = 8
# If the driver lists no processes (in a container), a GPU counts as busy when at least this share of its
# memory is in use.
UNSEEN_USE_SHARE = 0.05


class UnavailableError(ValueError):
    """The requested devices are not available; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class CheckDevices:
    """The devices of a check's jobs.

    Attributes:
        uuids: UUIDs of the GPUs for CUDA_VISIBLE_DEVICES; empty for CPU ranks.
        description: Text with the devices and the reason for the choice.
    """

    kind: Kind
    num_ranks: int
    uuids: tuple[str, ...] = ()
    description: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the jobs, in which only these GPUs are visible."""
        return cuda_environment.only(self.uuids)


@dataclass(frozen=True, kw_only=True)
class GpusNow:
    """The idle GPUs, and for each other GPU the reason why it is not used, as text."""

    free: tuple[VisibleGpu, ...] = ()
    in_use: tuple[str, ...] = ()


def sample(except_gpus: Collection[str] = ()) -> GpusNow:
    """Return the GPUs that are currently idle.

    Args:
        except_gpus: UUIDs of GPUs to exclude even if they seem idle, because a starting job is not visible on
            its GPU yet.
    """
    free, in_use = [], []
    for gpu in nvml.visible_gpus():
        reason = "is reserved for another job" if gpu.uuid in except_gpus else _reason_in_use(gpu)
        if reason is None:
            free.append(gpu)
        else:
            in_use.append(f"{_gpu_label(gpu)} {reason}")
    return GpusNow(free=tuple(free), in_use=tuple(in_use))


def exclude_unusable(gpus: GpusNow, uuids: Sequence[str]) -> GpusNow:
    """Exclude the GPUs that torch cannot use. torch reports only one of several MIG instances."""
    unusable = [gpu for gpu in gpus.free if gpu.uuid not in uuids and not (gpu.is_part and uuids)]
    return GpusNow(
        free=tuple(gpu for gpu in gpus.free if gpu not in unusable),
        in_use=(*gpus.in_use, *(f"GPU {gpu.index} cannot be used by this torch" for gpu in unusable)),
    )


def _reason_in_use(gpu: VisibleGpu) -> str | None:
    """Return why a GPU is not idle, or None. The text does not name the owners of its processes."""
    if gpu.handle is None:
        return "cannot be queried"
    if nvml.is_divided(gpu.handle):
        return "is in MIG mode, but its instances are unknown"
    gpu_processes = nvml.gpu_processes(gpu.handle)
    if gpu_processes is None:
        return "does not report its users"
    # Ignore graphics processes: a desktop leaves enough memory, and often uses the only GPU.
    if any(not process.draws for process in gpu_processes):
        return "is in use"
    used, total = nvml.memory_held_bytes(gpu.handle), nvml.read_gpu(gpu.handle).memory_total_bytes
    if not gpu_processes and used is not None and total and used > UNSEEN_USE_SHARE * total:
        return "has memory in use by a process that is not visible to this program"
    return None


def _gpu_label(gpu: VisibleGpu) -> str:
    """Return a GPU's name for display: its index; for a MIG instance the index of its GPU."""
    if not gpu.is_part or nvml.is_divided(gpu.handle):
        return f"GPU {gpu.index}"
    parent_gpu = nvml.gpu_divided_into(gpu.uuid)
    if parent_gpu is None:
        return "A MIG instance"
    index, name = nvml.gpu_index(parent_gpu), nvml.read_gpu(parent_gpu).name
    return f"A MIG instance of GPU {'?' if index is None else index}" + (f" ({name})" if name else "")


def choose(requested: str, num_ranks: int | None, gpus: GpusNow, gpu_problem: str | None) -> CheckDevices:
    """Choose the devices of the jobs.

    Args:
        requested: `auto`, `cpu` or `cuda`.
        num_ranks: None: all free GPUs, or two CPU ranks.
        gpu_problem: Why torch cannot use the GPUs; None if it can.

    Raises:
        UnavailableError: If the requested devices are not available.
    """
    full_gpus = tuple(gpu for gpu in gpus.free if not gpu.is_part)
    # Use only one MIG instance, by one rank, because NCCL does not support several.
    free = (full_gpus[:MAX_GPUS] or gpus.free[:1]) if gpu_problem is None else ()
    if requested == "cuda" and len(free) < (num_ranks or 1):
        raise UnavailableError(
            f"{_count_text(num_ranks or 1, 'GPU')} requested, but only {len(free)} can be used: "
            f"{gpu_problem or ', '.join(gpus.in_use) or 'none was found'}"
        )
    if requested != "cpu" and free and len(free) >= (num_ranks or 1):
        chosen = free[: num_ranks or len(free)]
        numbers = ", ".join(str(gpu.index) for gpu in chosen)
        description = f"{_count_text(len(chosen), 'GPU')} ({numbers})"
        if gpus.in_use:
            description += f"; skipped: {', '.join(gpus.in_use)}"
        return CheckDevices(
            kind="cuda",
            num_ranks=len(chosen),
            uuids=tuple(gpu.uuid for gpu in chosen),
            description=description,
        )
    ranks = num_ranks or CPU_RANKS
    description = _count_text(ranks, "CPU rank")
    reason = gpu_problem or ", ".join(gpus.in_use)
    if requested != "cpu" and free:
        description += (
            f", because that many were requested and only {_count_text(len(free), 'GPU')} can be used"
        )
        description += f": {reason}" if reason else ""
    elif requested != "cpu" and reason:
        description += f", because no GPU can be used: {reason}"
    return CheckDevices(kind="cpu", num_ranks=ranks, description=description)


def find_new_user(devices: CheckDevices, gpus: GpusNow) -> str | None:
    """Return a text about a GPU of the check that has a new user since the last job, or None."""
    free = {gpu.uuid for gpu in gpus.free}
    if all(uuid in free for uuid in devices.uuids):
        return None
    return ", ".join(gpus.in_use) or "a GPU of this check no longer responds"


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
