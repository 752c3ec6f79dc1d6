"""The process group of a run."""

from __future__ import annotations

import gc
import json
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from trainers.engines.several_nodes import peers
from trainers.machine import host, threads
from trainers.machine.cuda_environment import Obstacle
from trainers.parallel import devices
from trainers.watch.settings import STORE

COLLECTIVE_TIMEOUT = timedelta(seconds=60)
# Ranks that coordinate file operations may wait longer than for a gradient: disks can be slow.
SLOW_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank, its device and its process groups.

    Attributes:
        timeout: timeout of a collective.
        slow_group: gloo group for coordinating file operations, with the longer `slow_timeout`.
        gpu_obstacle: why the rank is not on a GPU although there are GPUs.
    """

    rank: int
    local_rank: int
    world_size: int
    node: int
    device: torch.device
    timeout: timedelta = COLLECTIVE_TIMEOUT
    slow_group: dist.ProcessGroup | None = None
    slow_timeout: timedelta = SLOW_TIMEOUT
    gpu_obstacle: Obstacle | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def create_groups(self, ranks_by_group: list[list[int]]) -> dist.ProcessGroup:
        """Create process groups with this job's timeout, on every rank; return the one of this rank.

        torch's default timeout is 10 minutes (NCCL) or 30 minutes (gloo).
        """
        group: dist.ProcessGroup
        group, _ = dist.new_subgroups_by_enumeration(ranks_by_group, timeout=self.timeout)
        return group

    def use_device(self) -> None:
        """Make this rank's GPU current in the calling thread: a new thread starts with GPU 0."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place. Every rank must call it."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values


def num_cores_to_use() -> int:
    """Return the number of cores that the ranks of this machine may use.

    Slurm does not always enforce its allocation by CPU affinity: the other cores may belong to other jobs.
    """
    num_cores = host.num_cores()
    slurm_cores = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(num_cores, int(slurm_cores)) if slurm_cores.isdecimal() and int(slurm_cores) > 0 else num_cores


def join(
    requested_device: str,
    timeout: timedelta = COLLECTIVE_TIMEOUT,
    *,
    most_threads: int | None = None,
    recorded_threads: int | None = None,
) -> World:
    """Join the process group of this torchrun job: NCCL between GPUs, gloo between CPU ranks.

    Args:
        timeout: a collective that waits longer than this for another rank fails.
        most_threads, recorded_threads: see `threads.choose`.

    Raises:
        ValueError: if the requested device is unavailable, or is not the one assigned to this rank.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
    choice = devices.choose(requested_device, local_rank, local_world_size)
    device = choice.device
    if device.type == "cuda":
        devices.set_gpu(device)
    else:
        # The ranks divide the free cores among them; torchrun's default is one thread each.
        torch.set_num_threads(
            threads.choose(
                local_world_size, num_cores_to_use(), max_threads=most_threads, recorded=recorded_threads
            )
        )
        devices.keep_freed_memory()
    store = None
    if is_one_machine():
        stay_on_loopback()
        store = dist.FileStore(str(local_store()))
        store.set_timeout(timeout)
    else:
        use_interface_towards(os.environ["MASTER_ADDR"])
    dist.init_process_group(
        backend=choice.backend,
        timeout=timeout,
        store=store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        device_id=device if choice.backend == "nccl" else None,
    )
    slow_timeout = max(SLOW_TIMEOUT, timeout)
    slow_group = dist.new_group(backend="gloo", timeout=slow_timeout)
    return World(
        timeout=timeout,
        slow_group=slow_group,
        slow_timeout=slow_timeout,
        rank=dist.get_rank(),
        local_rank=local_rank,
        world_size=dist.get_world_size(),
        node=int(os.environ.get("GROUP_RANK", "0")),
        device=device,
        gpu_obstacle=choice.obstacle,
    )


def use_free_cores(device: torch.device) -> int:
    """Let a GPU rank pick batches with all free cores, not one (torchrun's default); return their number.

    Call it after the data is loaded: the last digits of a sum on the CPU, such as a data set's mean, depend
    on the number of threads. Picking a batch only copies values, so it gives the same result with any number.
    """
    if device.type == "cuda":
        local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
        num_threads = threads.choose(
            local_world_size, num_cores_to_use(), max_threads=threads.MOST_BESIDE_GPU
        )
        torch.set_num_threads(num_threads)
    return torch.get_num_threads()


def is_one_machine() -> bool:
    """True if all ranks run on this machine."""
    return os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]


def local_store() -> Path:
    """Return the path of the FileStore through which the ranks of this machine find each other.

    The page passes one in the environment. If a user started torchrun, it is in torchrun's folder for error
    files, which has a unique name and is private to its owner.
    """
    if (path := os.environ.get(STORE)) is not None:
        return Path(path)
    return Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[1] / "store"


def stay_on_loopback() -> None:
    """Make gloo and NCCL listen on the loopback interface, which other machines cannot reach."""
    names = {name for _, name in socket.if_nameindex()}
    for loopback in ("lo", "lo0"):  # Linux, macOS
        if loopback in names:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback


def use_interface_towards(address: str) -> None:
    """Make gloo and NCCL use the interface that reaches the first machine, unless the user set one.

    By default gloo uses the address of this machine's host name, which on Debian is a loopback address.
    """
    interface = peers.interface_towards(address)
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)


# Destroyed groups, kept alive until the process ends to avoid a deadlock. The destructor of
# ProcessGroupGloo waits for the group's mutex while it holds the GIL; gloo's thread holds that mutex and
# waits for the GIL to release its final all-reduce. Observed with torch 2.13 on a busy machine.
_destroyed: list[dist.ProcessGroup] = []


def leave() -> None:
    """Destroy the process group; the caller must have dropped model, optimizer and losses.

    A DDP wrapper that outlives the group can abort the process at exit, so garbage is collected first.
    """
    gc.collect()
    if dist.is_initialized():
        _destroyed.extend(distributed_c10d._world.pg_map)  # noqa: SLF001 - there is no public list of groups
        dist.destroy_process_group()


def gather_json(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather one JSON value per rank, in rank order, on every rank of a CPU group.

    Uses JSON because `all_gather_object` unpickles data from other processes.
    """
    encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    num_ranks = dist.get_world_size(group)
    lengths = torch.zeros(num_ranks, dtype=torch.int64)
    lengths[dist.get_rank(group)] = len(encoded)
    dist.all_reduce(lengths, group=group)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
    padded[: len(encoded)] = encoded
    gathered = [torch.empty_like(padded) for _ in range(num_ranks)]
    dist.all_gather(gathered, padded, group=group)
    return [
        json.loads(text[:length].numpy().tobytes())
        for text, length in zip(gathered, lengths.tolist(), strict=True)
    ]
