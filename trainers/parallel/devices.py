"""The device of a rank."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainers.files import installation
from trainers.machine import cuda_environment, nvml
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.nvml import VisibleGpu

# Constants of glibc's malloc.h; see `man 3 mallopt`.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# glibc's maximum for this threshold: larger blocks are mapped and unmapped each time.
_MMAP_THRESHOLD_BYTES = 32 * 2**20


def keep_freed_memory() -> None:
    """Stop malloc from returning freed memory to the system; does nothing without glibc.

    By default, each step maps the memory of its activations again: a small transformer on the CPU then has
    4,000 to 13,000 page faults per step, which take 20 to 50 of 190 ms (benchmarks/LOG.md).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


# Oldest driver for each major CUDA version (NVIDIA, "CUDA Compatibility", minor version compatibility).
FIRST_DRIVER = {13: 580, 12: 525, 11: 450}
MAX_MESSAGE_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """A rank's device and its backend; `obstacle` is the reason if existing GPUs are not used."""

    device: torch.device
    backend: str = "gloo"
    obstacle: Obstacle | None = None


def choose(requested: str, local_rank: int, num_local_ranks: int) -> DeviceChoice:
    """Choose this rank's device; every rank gets the same kind. If it is the CPU, hide all GPUs from torch.

    Raises:
        ValueError: if GPUs are requested but unusable, or there are fewer GPUs than ranks.
    """
    if requested == "cpu":
        return _choose_cpu(None)
    obstacle = find_obstacle(num_local_ranks)
    num_gpus = 0 if obstacle is not None else torch.cuda.device_count()
    if num_gpus == 0 and requested == "auto":
        return _choose_cpu(obstacle)
    if obstacle is not None:
        reason = f"{obstacle.reason} {obstacle.remedy}"
        raise ValueError(f"device is {requested}, but no GPU can be used. {reason} Or choose device cpu")
    if cuda_environment.shares_one_gpu() and num_gpus > 0:
        return DeviceChoice(device=torch.device("cuda", local_rank % num_gpus))
    if num_gpus < num_local_ranks:
        raise ValueError(
            f"nproc_per_node is {num_local_ranks}, but torch sees {num_gpus} GPU(s) here: "
            f"choose {f'at most {num_gpus}, or ' if num_gpus else ''}device cpu"
        )
    return DeviceChoice(device=torch.device("cuda", local_rank), backend="nccl")


def _choose_cpu(obstacle: Obstacle | None) -> DeviceChoice:
    os.environ.update(cuda_environment.none_visible())
    return DeviceChoice(device=torch.device("cpu"), obstacle=obstacle)


def find_obstacle(num_ranks: int) -> Obstacle | None:
    """Return why the visible GPUs cannot train; None if they can or there are none.

    Initialises CUDA only after all other checks have passed.
    """
    visible = nvml.visible_gpus()
    if not visible and (obstacle := cuda_environment.obstacle()) is not None:
        return obstacle
    if not torch.backends.cuda.is_built():
        return _cpu_build_obstacle() if visible else None
    if not visible and torch.cuda.device_count() == 0:
        return None
    return _find_kernel_obstacle(visible, num_ranks) or _start_cuda()


def set_gpu(device: torch.device) -> None:
    """Set this process's GPU, and check that it is the GPU assigned to this rank.

    Raises:
        ValueError: if it is another GPU, or torch has no kernels for it.
    """
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if not is_covered(capability, torch.cuda.get_arch_list()):
        index = machine_index(device)
        label = device if index is None else f"GPU {index}"
        obstacle = _kernel_obstacle([f"{properties.name} ({label})"])
        raise ValueError(f"{obstacle.reason} {obstacle.remedy} Or choose device cpu")
    _check_assigned_gpu(device.index, properties)


def machine_index(device: torch.device) -> int | None:
    """Return a GPU's index on the machine (torch numbers only the visible ones), or None if unknown."""
    handle = nvml.gpu_handle(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))
    return None if handle is None else nvml.gpu_index(handle)


def describe_device(device: torch.device) -> str:
    """Return a device as text for a log: a GPU by its index on the machine and its torch index."""
    index = machine_index(device) if device.type == "cuda" else None
    return str(device) if index is None else f"GPU {index} ({device})"


def _check_assigned_gpu(index: int, properties: Any) -> None:
    """Compare a GPU's UUID with the one that the queue assigned in CUDA_VISIBLE_DEVICES.

    They differ if something called CUDA before that variable was set. Skipped if the variable holds an
    index, and for a MIG instance, which has a different UUID from its GPU.

    Raises:
        ValueError: if they differ.
    """
    names = cuda_environment.visible_names() or []
    assigned = names[index] if index < len(names) else ""
    uuid = getattr(properties, "uuid", None)
    if not assigned.startswith(cuda_environment.GPU) or uuid is None:
        return
    opened = nvml.named(str(uuid))
    if opened.startswith(assigned):
        return
    handle = nvml.gpu_handle(assigned)
    if handle is not None and nvml.is_divided(handle):
        return
    raise ValueError(
        f"this rank was assigned {assigned}, but CUDA opened {opened}: something, probably a package that "
        "torch imports, called CUDA before CUDA_VISIBLE_DEVICES was set. Start the page with --no-standby"
    )


def is_covered(capability: tuple[int, int], arch_list: Iterable[str]) -> bool:
    """True if a torch built for these architectures has kernels for a GPU.

    `sm_80` runs on 8.0 and later minor versions of 8, `sm_90a` on 9.0 alone; `compute_80` is PTX, which the
    driver compiles for any newer GPU (CUDA C++ Programming Guide, "Compute Compatibility").
    """
    matches = [re.fullmatch(r"(sm|compute)_(\d+)([af]?)", name) for name in arch_list]
    architectures = [parts for parts in matches if parts is not None]
    # Architectures of other vendors have other names; assume that they are covered.
    return not architectures or any(_covers(parts, capability) for parts in architectures)


def _covers(parts: re.Match[str], capability: tuple[int, int]) -> bool:
    kind, number, suffix = parts.groups()
    built_for = divmod(int(number), 10)
    if suffix == "a":
        return built_for == capability
    if kind == "compute" and not suffix:
        return built_for <= capability
    return built_for[0] == capability[0] and built_for[1] <= capability[1]


def _find_kernel_obstacle(visible: Sequence[VisibleGpu], num_ranks: int) -> Obstacle | None:
    """Return an obstacle if torch has kernels for fewer GPUs than needed, according to NVML."""
    arch_list = torch.cuda.get_arch_list()
    unsupported = []
    for gpu in visible:
        capability = None if gpu.handle is None else nvml.compute_capability(gpu.handle)
        if capability is not None and not is_covered(capability, arch_list):
            name = nvml.read_gpu(gpu.handle).name or "a GPU"
            unsupported.append(f"{name} (compute capability {capability[0]}.{capability[1]})")
    if not unsupported or len(visible) - len(unsupported) >= min(num_ranks, len(visible)):
        return None
    return _kernel_obstacle(unsupported)


def _kernel_obstacle(names: Sequence[str]) -> Obstacle:
    unsupported, supported = ", ".join(names), ", ".join(torch.cuda.get_arch_list())
    return Obstacle(
        reason=f"This torch ({torch.__version__}) has no kernels for {unsupported}: only for {supported}.",
        remedy=(
            f"Install a torch that was built for this card ({installation.torch_for_gpus()}), or name other "
            f"GPUs in {cuda_environment.VISIBLE}."
        ),
    )


def _cpu_build_obstacle() -> Obstacle:
    return Obstacle(
        reason=f"This torch ({torch.__version__}) was built for CPUs only.",
        remedy=f"Install one for GPUs ({installation.torch_for_gpus()}).",
    )


def _start_cuda() -> Obstacle | None:
    """Initialise CUDA; return its error with the usual remedy, or None."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        return describe_cuda_error(str(error), torch.version.cuda, nvml.driver_versions()[0])
    return None


def describe_cuda_error(error: str, built_for: str | None, driver: str | None) -> Obstacle:
    """Return the cause and the remedy of an error from CUDA's initialisation.

    Args:
        built_for: the CUDA version of this torch.
        driver: the version of NVIDIA's driver, or None if unknown.
    """
    message = " ".join(error.split())[:MAX_MESSAGE_CHARS]
    reinstall_text = "reinstall NVIDIA's driver."
    if "driver on your system is too old" in message or "driver version is insufficient" in message:
        return _old_driver_obstacle(built_for, driver)
    if "system not yet initialized" in message:
        reason = "The service that sets up the links between the GPUs (NVSwitch) is not running: error 802."
        start = "sudo systemctl start nvidia-fabricmanager"
        remedy = f"Start it, in the same version as the driver: {start}."
    elif "Found no NVIDIA driver" in message:
        reason = "CUDA's part of the driver (libcuda) is missing, although the GPUs respond."
        capabilities_text = "NVIDIA_DRIVER_CAPABILITIES must list compute, besides utility"
        remedy = f"In a container {capabilities_text}; elsewhere {reinstall_text}"
    else:
        reason = f"CUDA does not start: {message}"
        remedy = f"Restart the machine; if that does not help, {reinstall_text}"
    return Obstacle(reason=reason, remedy=remedy)


def _old_driver_obstacle(built_for: str | None, driver: str | None) -> Obstacle:
    min_version = FIRST_DRIVER.get(int(built_for.split(".")[0])) if built_for else None
    driver_text = f"NVIDIA's driver {min_version} or newer" if min_version else "a newer driver of NVIDIA's"
    return Obstacle(
        reason=(
            f"NVIDIA's driver ({driver or 'of unknown version'}) is too old for this torch "
            f"({torch.__version__}), which was built for CUDA {built_for}."
        ),
        remedy=f"Install {driver_text}, or a torch for an older CUDA ({installation.torch_for_gpus()}).",
    )
