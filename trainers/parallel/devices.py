"""The device of a rank: memory, formats and precision."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainers.machine import cuda_environment, hardware
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.hardware import VisibleGpu

# The names and numbers of glibc's malloc.h; see `man 3 mallopt`.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# The most glibc takes: what is larger comes from the system each time, and goes back to it.
_LARGEST_KEPT_BYTES = 32 * 2**20


def keep_what_is_freed() -> None:
    """Let this process keep up to the most memory it ever needed; nothing happens without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)


log = logging.getLogger(__name__)

# On a GPU it pays where tensor cores compute; in fp32 cuDNN is often slower with it.
_PRECISIONS_OF_TENSOR_CORES = ("bf16", "fp16", "tf32")


def put_channels_last(network: nn.Module, device: torch.device, precision: str) -> None:
    """Lay out the filters of a network of 2-d convolutions channels last; what flows through it follows."""
    if device.type == "cuda" and precision not in _PRECISIONS_OF_TENSOR_CORES:
        return
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        log.info("filters and images lie channels last in memory")


def align_state(optimizer: torch.optim.Optimizer) -> None:
    """Lay out each parameter's state as the parameter itself.

    A checkpoint keeps the layout it was saved with, and fused kernels go through both without looking.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_like_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_like_it and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The context of a forward pass, and the optimizer step that goes with it.

    fp16 has few bits for small gradients: the loss is scaled up before backward, the gradients down
    before the step, and a step with an infinite gradient is left out and the scale halved (Micikevicius
    et al. 2017, "Mixed Precision Training").
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._kind = _AUTOCAST.get(name)
        self._device = device
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            torch.backends.cudnn.allow_tf32 = name == "tf32"
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._one = torch.ones((), device=device)
        self.loss_scale()  # the scaler is complete only after its first use

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context the model's forward pass runs in."""
        if self._kind is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._kind)

    def loss_scale(self) -> torch.Tensor:
        """Return the gradient of the loss that backward begins with. Without waiting for a GPU.

        It is 1, but for fp16. Left to make it itself, backward would fill a new tensor in each step.
        """
        return self._one if self.scaler is None else self.scaler.scale(self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their own size, on every rank."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer; with fp16 only when all gradients are finite."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


# The first driver that runs programs of a CUDA version (NVIDIA, "CUDA Compatibility", minor versions).
FIRST_DRIVER = {13: 580, 12: 525, 11: 450}
MAX_WORDS = 300


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A rank's device, and what the ranks talk over; `obstacle` is why GPUs that are there are not used."""

    device: torch.device
    backend: str = "gloo"
    obstacle: Obstacle | None = None


def choose(wanted: str, local_rank: int, num_local_ranks: int) -> Choice:
    """Choose this rank's device, the same kind on every rank; on the CPU all GPUs are hidden from then on.

    Raises:
        ValueError: when GPUs are wanted that cannot be used, or there are fewer than ranks.
    """
    if wanted == "cpu":
        return _on_the_cpu(None)
    obstacle = why_unusable(num_local_ranks)
    num_gpus = 0 if obstacle is not None else torch.cuda.device_count()
    if num_gpus == 0 and wanted == "auto":
        return _on_the_cpu(obstacle)
    if obstacle is not None:
        why = f"{obstacle.reason} {obstacle.remedy}"
        raise ValueError(f"device is {wanted}, but no GPU can be used. {why} Or choose device cpu")
    if cuda_environment.shares_one_gpu() and num_gpus > 0:
        return Choice(device=torch.device("cuda", local_rank % num_gpus))
    if num_gpus < num_local_ranks:
        raise ValueError(
            f"nproc_per_node is {num_local_ranks}, but torch sees {num_gpus} GPU(s) here: "
            f"choose {f'at most {num_gpus}, or ' if num_gpus else ''}device cpu"
        )
    return Choice(device=torch.device("cuda", local_rank), backend="nccl")


def _on_the_cpu(obstacle: Obstacle | None) -> Choice:
    os.environ.update(cuda_environment.none_visible())
    return Choice(device=torch.device("cpu"), obstacle=obstacle)


def why_unusable(num_ranks: int) -> Obstacle | None:
    """Say why the GPUs that may be seen here cannot train; None where they can, and where there is none.

    Whether they can is asked of CUDA itself at the very end: what is known before leaves it uncalled.
    """
    visible = hardware.visible_gpus()
    if not visible and (told := cuda_environment.obstacle()) is not None:
        return told
    if not torch.backends.cuda.is_built():
        return _built_for_the_cpu() if visible else None
    if not visible and torch.cuda.device_count() == 0:
        return None
    return _too_few_supported(visible, num_ranks) or _why_it_does_not_start()


def hold(device: torch.device) -> None:
    """Take a GPU for this process, and check that it is the one this rank was given.

    Raises:
        ValueError: when it is another one, or torch has no programs for it.
    """
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    if not is_covered(capability, torch.cuda.get_arch_list()):
        index = machine_index(device)
        which = device if index is None else f"GPU {index}"
        unsupported = _unsupported([f"{properties.name} ({which})"])
        raise ValueError(f"{unsupported.reason} {unsupported.remedy} Or choose device cpu")
    _require_given(device.index, properties)


def machine_index(device: torch.device) -> int | None:
    """Return a GPU's index on the machine: torch counts the visible ones anew. None where it is not known."""
    handle = hardware.gpu_handle(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))
    return None if handle is None else hardware.gpu_index(handle)


def described(device: torch.device) -> str:
    """Return a device for a log: the GPU by its index on the machine, and as torch counts it."""
    index = machine_index(device) if device.type == "cuda" else None
    return str(device) if index is None else f"GPU {index} ({device})"


def _require_given(index: int, properties: Any) -> None:
    """Compare the UUID of a GPU with that in CUDA_VISIBLE_DEVICES, as which the queue hands it out.

    They differ where something has called CUDA before that variable was set. By an index nothing can be
    told, nor of a part of a GPU (MIG), which has a UUID of its own.

    Raises:
        ValueError: when they differ.
    """
    names = cuda_environment.visible_names() or []
    given = names[index] if index < len(names) else ""
    uuid = getattr(properties, "uuid", None)
    if not given.startswith(cuda_environment.GPU) or uuid is None:
        return
    held = hardware.named(str(uuid))
    if held.startswith(given):
        return
    handle = hardware.gpu_handle(given)
    if handle is not None and hardware.is_divided(handle):
        return
    raise ValueError(
        f"this rank was given {given}, but holds {held}: something called CUDA before the run said which GPU "
        "is its own. A file in trainers/models, trainers/datasets or trainers/strategies must not do so when "
        "it is imported; until it is mended, start the page with --no-standby"
    )


def is_covered(capability: tuple[int, int], arch_list: Iterable[str]) -> bool:
    """Tell whether a torch that was built for these architectures has programs for a GPU.

    `sm_80` runs on 8.0 and later minor versions of 8, `sm_90a` on 9.0 alone; of `compute_80` the driver
    makes programs for whatever is newer (CUDA C++ Programming Guide, "Compute Compatibility").
    """
    built = [re.fullmatch(r"(sm|compute)_(\d+)([af]?)", name) for name in arch_list]
    known = [parts for parts in built if parts is not None]
    # Other makers' cards are not counted like this.
    return not known or any(_covers(parts, capability) for parts in known)


def _covers(parts: re.Match[str], capability: tuple[int, int]) -> bool:
    kind, number, only_on = parts.groups()
    built_for = divmod(int(number), 10)
    if only_on == "a":
        return built_for == capability
    if kind == "compute" and not only_on:
        return built_for <= capability
    return built_for[0] == capability[0] and built_for[1] <= capability[1]


def _too_few_supported(visible: Sequence[VisibleGpu], num_ranks: int) -> Obstacle | None:
    """Say that torch has programs for fewer of the GPUs than are needed, as far as NVML knows."""
    arch_list = torch.cuda.get_arch_list()
    unsupported = []
    for gpu in visible:
        capability = None if gpu.handle is None else hardware.compute_capability(gpu.handle)
        if capability is not None and not is_covered(capability, arch_list):
            name = hardware.read_gpu(gpu.handle).name or "a GPU"
            unsupported.append(f"{name} (compute capability {capability[0]}.{capability[1]})")
    if not unsupported or len(visible) - len(unsupported) >= min(num_ranks, len(visible)):
        return None
    return _unsupported(unsupported)


def _unsupported(names: Sequence[str]) -> Obstacle:
    unsupported, supported = ", ".join(names), ", ".join(torch.cuda.get_arch_list())
    return Obstacle(
        reason=f"This torch ({torch.__version__}) has no programs for {unsupported}: only for {supported}.",
        remedy=(
            "Install a torch that was built for this card (./run.sh --torch-build auto), or name other "
            f"GPUs in {cuda_environment.VISIBLE}."
        ),
    )


def _built_for_the_cpu() -> Obstacle:
    return Obstacle(
        reason=f"This torch ({torch.__version__}) was built for CPUs only.",
        remedy="Install one for GPUs (./run.sh --torch-build auto).",
    )


def _why_it_does_not_start() -> Obstacle | None:
    """Start CUDA; say why it does not, in the words of its error and of what usually helps."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        return explain(str(error), torch.version.cuda, hardware.driver_versions()[0])
    return None


def explain(error: str, built_for: str | None, driver: str | None) -> Obstacle:
    """Say what an error at CUDA's start means, and what to do.

    Args:
        built_for: the CUDA version of this torch.
        driver: the version of NVIDIA's driver, where it can be asked.
    """
    said = " ".join(error.split())[:MAX_WORDS]
    again = "install NVIDIA's driver anew."
    if "driver on your system is too old" in said or "driver version is insufficient" in said:
        return _driver_too_old(built_for, driver)
    if "system not yet initialized" in said:
        reason = "The service that sets up the links between the GPUs (NVSwitch) does not run: error 802."
        start = "sudo systemctl start nvidia-fabricmanager"
        remedy = f"Start it, in the same version as the driver: {start}."
    elif "Found no NVIDIA driver" in said:
        reason = "CUDA's own part of the driver (libcuda) is not there, though the GPUs can be asked."
        lists = "NVIDIA_DRIVER_CAPABILITIES must list compute, besides utility"
        remedy = f"In a container {lists}; elsewhere {again}"
    else:
        reason = f"CUDA does not start: {said}"
        remedy = f"Restart the machine; if that does not help, {again}"
    return Obstacle(reason=reason, remedy=remedy)


def _driver_too_old(built_for: str | None, driver: str | None) -> Obstacle:
    first = FIRST_DRIVER.get(int(built_for.split(".")[0])) if built_for else None
    newer = f"NVIDIA's driver {first} or newer" if first else "a newer driver of NVIDIA's"
    return Obstacle(
        reason=(
            f"NVIDIA's driver ({driver or 'of unknown version'}) is too old for this torch "
            f"({torch.__version__}), which was built for CUDA {built_for}."
        ),
        remedy=f"Install {newer}, or a torch for an older CUDA (./run.sh --torch-build auto).",
    )
