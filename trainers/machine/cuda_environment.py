"""The environment variables that decide which GPUs a process sees, and how the page passes GPUs to runs.

CUDA's driver reads them once, when a process first calls it (`cuInit`): changing them later has no effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
# Number the GPUs in NVML's order; CUDA's default order is "fastest first".
BUS_ORDER = "PCI_BUS_ID"
# Variables that a rank started in advance (warm pool) must receive with its run.
OF_A_RUN = (VISIBLE, ORDER)
# Variable with the reason why the page hides all GPUs, as JSON of an `Obstacle`.
OBSTACLE = "TRAINERS_GPU_OBSTACLE"
# For tests only: see `shares_one_gpu`.
SHARE_ONE_GPU = "TRAINERS_SHARE_ONE_GPU"

GPU = "GPU-"
MIG = "MIG-"


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why the machine's GPUs cannot be used, and how to fix it; one sentence each."""

    reason: str
    remedy: str


def none_visible() -> dict[str, str]:
    """Return the variables of a process that trains on the CPU, so that it cannot open a CUDA context."""
    return {VISIBLE: ""}


def only(uuids: Iterable[str]) -> dict[str, str]:
    """Return the variables of a process that may see only these GPUs, in this order."""
    return {VISIBLE: ",".join(uuids), ORDER: BUS_ORDER}


def visible_names() -> list[str] | None:
    """Return the indices or UUIDs in CUDA_VISIBLE_DEVICES, or None if it does not restrict the GPUs.

    As in CUDA, the list ends at the first name that is empty or begins with "-", and a repeated name hides
    all GPUs (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return None
    names: list[str] = []
    for name in (part.strip() for part in visible.split(",")):
        if not name or name.startswith("-"):
            break
        if name in names:
            return []
        names.append(name)
    return names


def names_by_index() -> bool:
    """Return True if GPUs are selected by CUDA's own indices, which can differ from NVML's."""
    names = visible_names() or []
    return os.environ.get(ORDER) != BUS_ORDER and any(name.isdecimal() for name in names)


def with_obstacle(obstacle: Obstacle) -> dict[str, str]:
    """Return the variables that hide all GPUs from a process and its children, with the reason."""
    return {**none_visible(), OBSTACLE: json.dumps(asdict(obstacle))}


def obstacle() -> Obstacle | None:
    """Return the reason why the page hides all GPUs from its child processes, or None if it does not."""
    value = os.environ.get(OBSTACLE)
    return None if value is None else Obstacle(**json.loads(value))


def shares_one_gpu() -> bool:
    """Return True if more ranks than GPUs may be started: a switch for tests, TRAINERS_SHARE_ONE_GPU=1.

    Rank r then uses GPU r % the number of GPUs, and the ranks communicate over gloo, which copies through the
    host, because NCCL refuses two ranks on one GPU. This covers DDP and ZeRO-1, whose collectives on GPU
    tensors (all-reduce and broadcast) are those that torch documents for gloo. Sharded and tensor-parallel
    strategies (ZeRO-2, ZeRO-3, tensor, data_tensor, pipeline) need other collectives and are not supported.

    The page does not use it: its queue always assigns one GPU per rank. Such a run is started from a shell or
    by its supervisor. Children inherit the variable.
    """
    return os.environ.get(SHARE_ONE_GPU) == "1"
