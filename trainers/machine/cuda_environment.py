"""The variables by which CUDA is told what a process may see, and by which the page tells runs of its GPUs.

CUDA's driver reads them once, when a process first calls it (`cuInit`): set later, they change nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
# Indices as NVML counts. CUDA's own default is "the fastest first".
BUS_ORDER = "PCI_BUS_ID"
# What ranks that were started before their run must be told with it.
OF_A_RUN = (VISIBLE, ORDER)
# Why the page hides all GPUs, as JSON of an `Obstacle`.
OBSTACLE = "TRAINERS_GPU_OBSTACLE"
# For tests only: see `shares_one_gpu`.
SHARE_ONE_GPU = "TRAINERS_SHARE_ONE_GPU"

GPU = "GPU-"
MIG = "MIG-"


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why GPUs that are there cannot be used, and what to do; a sentence each."""

    reason: str
    remedy: str


def none_visible() -> dict[str, str]:
    """Return the variables of a process that trains on the CPU: it can open no CUDA context by accident."""
    return {VISIBLE: ""}


def only(uuids: Iterable[str]) -> dict[str, str]:
    """Return the variables of a process that may see these GPUs alone, in this order."""
    return {VISIBLE: ",".join(uuids), ORDER: BUS_ORDER}


def visible_names() -> list[str] | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by index or UUID; None where it leaves all.

    As CUDA reads it: what comes after an empty or a negative name is left out, and a repeated name hides all
    (CUDA C++ Programming Guide, "CUDA Environment Variables").
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
    """Tell whether GPUs are named by CUDA's own indices, which need not be those of NVML."""
    names = visible_names() or []
    return os.environ.get(ORDER) != BUS_ORDER and any(name.isdecimal() for name in names)


def with_obstacle(obstacle: Obstacle) -> dict[str, str]:
    """Return the variables of a process, and of all it starts, that can use no GPU and shall say why."""
    return {**none_visible(), OBSTACLE: json.dumps(asdict(obstacle))}


def obstacle() -> Obstacle | None:
    """Return why the page hides all GPUs from what it starts; None where it does not."""
    told = os.environ.get(OBSTACLE)
    return None if told is None else Obstacle(**json.loads(told))


def shares_one_gpu() -> bool:
    """Tell whether more ranks than GPUs may be started: a switch for tests, TRAINERS_SHARE_ONE_GPU=1.

    Rank r is then on GPU r % the number of GPUs, and the ranks talk over gloo, which copies through the
    host: NCCL refuses two ranks on one GPU. It covers DDP and ZeRO-1, whose collectives on GPU tensors
    (all-reduce and broadcast) are those that torch documents for gloo. Sharded and tensor-parallel
    strategies (ZeRO-2, ZeRO-3, tensor, data_tensor, pipeline) ask for others, which it does not cover.
    The page knows nothing of it: its queue hands out a GPU a rank, as ever. Such a run is started by hand or
    by its supervisor. Children get the variable as they get any other.
    """
    return os.environ.get(SHARE_ONE_GPU) == "1"
