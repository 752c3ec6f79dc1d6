"""The process group: who this rank is, and exact sums over all ranks."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from trainers import host_memory

COLLECTIVE_TIMEOUT = timedelta(seconds=60)
# Files take their time: what ranks tell each other about them may wait longer than a gradient.
SLOW_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank's place among the others, and its device; `slow_group` is for talk about files.

    `slow_timeout` is how long a rank waits in such talk.
    """

    rank: int
    local_rank: int
    world_size: int
    node: int
    device: torch.device
    slow_group: dist.ProcessGroup | None = None
    slow_timeout: timedelta = SLOW_TIMEOUT

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place; every rank must call it."""
        dist.all_reduce(values)
        return values


def choose_device(wanted: str, local_rank: int, local_world_size: int) -> torch.device:
    """Return this rank's device.

    Raises:
        ValueError: when there are fewer GPUs than ranks.
    """
    num_gpus = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cpu" or (wanted == "auto" and num_gpus == 0):
        return torch.device("cpu")
    if num_gpus < local_world_size:
        raise ValueError(
            f"nproc_per_node is {local_world_size}, but torch sees {num_gpus} GPU(s) here: "
            f"choose at most {num_gpus}, or device cpu"
        )
    return torch.device("cuda", local_rank)


def join(wanted_device: str, timeout: timedelta = COLLECTIVE_TIMEOUT) -> World:
    """Join the group torchrun set up: NCCL between GPUs, gloo between CPU ranks.

    Args:
        timeout: a collective that waits longer for another rank is an error.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
    device = choose_device(wanted_device, local_rank, local_world_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # The ranks share the cores: each takes its part, where torchrun's default is one thread.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // local_world_size))
        host_memory.keep_what_is_freed()
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    slow_timeout = max(SLOW_TIMEOUT, timeout)
    slow_group = dist.new_group(backend="gloo", timeout=slow_timeout)
    return World(
        slow_group=slow_group,
        slow_timeout=slow_timeout,
        rank=dist.get_rank(),
        local_rank=local_rank,
        world_size=dist.get_world_size(),
        node=int(os.environ.get("GROUP_RANK", "0")),
        device=device,
    )


def leave() -> None:
    """Leave the group; the caller has dropped model, optimizer and losses.

    A DDP wrapper that outlives the group can abort the process at exit, hence the collection first.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def gather_objects(value: object, world: World) -> list[object]:
    """Return every rank's value, by rank, on every rank."""
    gathered: list[object] = [None] * world.world_size
    dist.all_gather_object(gathered, value, group=world.slow_group)
    return gathered
