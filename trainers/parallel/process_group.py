"""The process group of a run, and torch's flight recorder of its collectives."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from trainers.engines import heartbeats
from trainers.engines.heartbeats import Answer, Collective, Group
from trainers.engines.local.torchrun import STORE
from trainers.engines.several_nodes import peers
from trainers.machine import threads
from trainers.machine.cuda_environment import Obstacle
from trainers.parallel import devices

log = logging.getLogger(__name__)

_FUNCTIONS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
# Dtype names in torch's JSON whose lower case is not the name of a `torch.dtype`.
_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}
_DTYPES |= {"Byte": "uint8", "Char": "int8", "Short": "int16"}


def flight_record_text(gradients_done: Callable[[], int | None] = lambda: None) -> bytes:
    """Return this rank's answer to the supervisor's hang watch. Never waits for a collective.

    Args:
        gradients_done: returns the number of backward passes whose gradients this rank's GPU has computed.
    """
    found: Sequence[Group] | None = None
    try:
        found = recorded_groups()
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:  # another version of torch
        log.warning("the flight recorder cannot be read: %r", error)
    try:
        done = gradients_done()
    except RuntimeError as error:  # a CUDA error, after which the device is unusable
        log.warning("the progress of the GPU is not known: %r", error)
        done = None
    return heartbeats.to_bytes(Answer(groups=tuple(found or ()), gradients_done=done))


def recorded_groups() -> tuple[Group, ...] | None:
    """Return this rank's process groups, or None if this torch has no flight recorder."""
    dumps = [getattr(c10d, name) for name in _FUNCTIONS if hasattr(c10d, name)]
    known = _known_groups()
    if not dumps or known is None:
        return None
    entries = [entry for dump in dumps for entry in json.loads(dump()).get("entries", ())]
    # Point-to-point operations have a separate numbering and involve only two ranks.
    entries = [entry for entry in entries if not entry["is_p2p"]]
    return tuple(
        _group(name, ranks, [entry for entry in entries if entry["process_group"][0] == name])
        for name, ranks in known.items()
    )


def _known_groups() -> Mapping[str, tuple[int, ...]] | None:
    """Return the ranks of each process group by torch's name for it; the dump has them for NCCL only."""
    world = getattr(distributed_c10d, "_world", None)
    if world is None:
        return None
    return {world.pg_names[group]: tuple(sorted(ranks)) for group, ranks in world.pg_group_ranks.items()}


def _group(name: str, ranks: tuple[int, ...], entries: list[dict[str, Any]]) -> Group:
    """Return a group from its entries, which torch lists in the order of recording."""
    unfinished = next((entry for entry in entries if not entry["retired"]), None)
    return Group(
        name=name,
        ranks=ranks,
        newest=_collective(entries[-1]) if entries else None,
        unfinished=None if unfinished is None else _collective(unfinished),
    )


def _collective(entry: Mapping[str, Any]) -> Collective:
    name = entry["profiling_name"].partition(":")[2].strip("_").removesuffix("_base").replace("_", "-")
    dtype = next(iter(entry["input_dtypes"]), "")
    word = _DTYPES.get(dtype, dtype.lower())
    kind = getattr(torch, word, None)
    size = kind.itemsize if isinstance(kind, torch.dtype) else 0
    num_values = sum(math.prod(shape) for shape in entry["input_sizes"])
    return Collective(
        number=entry["collective_seq_id"],
        name=name,
        dtype=word if size else "",
        num_bytes=size * num_values,
    )


COLLECTIVE_TIMEOUT = timedelta(seconds=60)
# Ranks that coordinate file operations may wait longer than for a gradient: disks can be slow.
SLOW_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class World:
    """This rank's number, its device and the process groups.

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

    def groups_of(self, ranks_of_groups: list[list[int]]) -> dist.ProcessGroup:
        """Create process groups with this job's timeout, on every rank; return the one of this rank.

        torch's default timeout is 10 minutes (NCCL) or 30 minutes (gloo).
        """
        own: dist.ProcessGroup
        own, _ = dist.new_subgroups_by_enumeration(ranks_of_groups, timeout=self.timeout)
        return own

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
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(there, int(given)) if given.isdecimal() and int(given) > 0 else there


def join(
    wanted_device: str,
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
    choice = devices.choose(wanted_device, local_rank, local_world_size)
    device = choice.device
    if device.type == "cuda":
        devices.hold(device)
    else:
        # The ranks divide the free cores among them; torchrun's default is one thread each.
        torch.set_num_threads(
            threads.choose(local_world_size, num_cores_to_use(), most=most_threads, recorded=recorded_threads)
        )
        devices.keep_what_is_freed()
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
    on the number of threads. Picking a batch only copies, so its result does not.
    """
    if device.type == "cuda":
        local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
        num_threads = threads.choose(local_world_size, num_cores_to_use(), most=threads.MOST_BESIDE_GPU)
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
    if (made := os.environ.get(STORE)) is not None:
        return Path(made)
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


def leave() -> None:
    """Destroy the process group; the caller must have dropped model, optimizer and losses.

    A DDP wrapper that outlives the group can abort the process at exit, so garbage is collected first.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def gather_json(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather one JSON value per rank, in rank order, on every rank of a CPU group.

    JSON and not `all_gather_object`, which unpickles what other processes send.
    """
    written = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    num_ranks = dist.get_world_size(group)
    lengths = torch.zeros(num_ranks, dtype=torch.int64)
    lengths[dist.get_rank(group)] = len(written)
    dist.all_reduce(lengths, group=group)
    padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
    padded[: len(written)] = written
    gathered = [torch.empty_like(padded) for _ in range(num_ranks)]
    dist.all_gather(gathered, padded, group=group)
    return [
        json.loads(text[:length].numpy().tobytes())
        for text, length in zip(gathered, lengths.tolist(), strict=True)
    ]
