"""Runs a script written for GPUs on CPU ranks. Its requests for GPUs have no effect; the page lists them.

Wraps the functions that take a device, which costs half a percent of the time of a small step. A mode for all
functions of torch (`TorchFunctionMode`) would catch more requests, but costs a third.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import math
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._device import DeviceContext, _device_constructors

from trainers.watch.guard import after_import

CPU = torch.device("cpu")
_Generator = torch.Generator  # before it is replaced
# Functions that create a tensor on the device given as an argument.
_FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "load", "normal",
    "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "tensor", "zeros", "zeros_like",
)  # fmt: skip
_CUDA_DOES_NOTHING = (
    "set_device", "synchronize", "empty_cache", "init", "reset_peak_memory_stats", "ipc_collect",
    "reset_max_memory_allocated", "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all",
)  # fmt: skip
_CUDA_SIZES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
_TENSOR_FACTORIES = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")


def is_gpu(device: Any) -> bool:
    """True if an argument selects a GPU: "cuda", "cuda:0", a device, or a GPU's number."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def replace_gpus(recorder: Any, num_ranks: int) -> None:
    """Replace the functions; the recorder notes each line that requests a GPU.

    Args:
        num_ranks: number of GPUs that `torch.cuda.device_count` reports to the script.
    """

    def without_device(function: Any, label: str, *, takes_position: bool) -> Any:
        @functools.wraps(function)
        def on_cpu(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs and kwargs["device"] is not None and is_gpu(kwargs["device"]):
                kwargs["device"] = CPU
                recorder.replace(f"{label} on a GPU uses the CPU", 2)
            if takes_position and len(args) > 1 and is_gpu(args[1]):
                args = (args[0], CPU, *args[2:])
                recorder.replace(f"{label} a GPU keeps the CPU", 2)
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            map_location = kwargs.get("map_location")
            if isinstance(map_location, dict) or callable(map_location) or is_gpu(map_location):
                kwargs["map_location"] = CPU
            return function(*args, **kwargs)

        return on_cpu

    def keeps_cpu(label: str) -> Any:
        def keep(self: Any, *_args: Any, **_kwargs: Any) -> Any:
            recorder.replace(f"{label} has no effect", 2)
            return self

        return keep

    _device_constructors()  # cached: `with torch.device` recognises the functions that are replaced here
    for name in _FACTORIES:
        wrapped = without_device(getattr(torch, name), f"torch.{name}", takes_position=name == "load")
        setattr(torch, name, wrapped)
    for name in _TENSOR_FACTORIES:
        wrapped = without_device(getattr(torch.Tensor, name), f".{name}", takes_position=False)
        setattr(torch.Tensor, name, wrapped)
    for kind in (torch.Tensor, nn.Module):
        kind.to = without_device(kind.to, ".to", takes_position=True)  # type: ignore[method-assign]
        kind.cuda = keeps_cpu(".cuda()")  # type: ignore[method-assign]
    torch.Tensor.pin_memory = keeps_cpu(".pin_memory()")  # type: ignore[method-assign]

    _replace_constructors(recorder)
    _replace_groups(recorder)
    _replace_devices(recorder)
    _replace_cuda(recorder, num_ranks)
    _replace_autocast(recorder)


def _replace_constructors(recorder: Any) -> None:
    """Make DDP, FSDP 1 and DataLoader ignore their device arguments."""
    make_ddp, make_loader = DistributedDataParallel.__init__, torch.utils.data.DataLoader.__init__

    @functools.wraps(make_ddp)
    def ddp_on_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("device_ids") is not None or len(args) > 1:
            recorder.replace("device_ids has no effect", 2)
        kwargs.pop("device_ids", None)
        kwargs.pop("output_device", None)
        make_ddp(self, *args[:1], **kwargs)

    @functools.wraps(make_loader)
    def loader_on_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
            recorder.replace("pin_memory has no effect", 2)
        make_loader(self, *args, **kwargs)

    def keep_batch_norm(module: nn.Module, *_args: Any, **_kwargs: Any) -> nn.Module:
        recorder.replace("convert_sync_batchnorm has no effect", 2)  # DDP refuses SyncBatchNorm on CPUs
        recorder.is_norm_synced = True
        return module

    def replace_in_fsdp() -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        make_fsdp = FullyShardedDataParallel.__init__

        @functools.wraps(make_fsdp)
        def fsdp_on_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("device_id") is not None:
                recorder.replace("device_id has no effect", 2)
                kwargs["device_id"] = CPU
            make_fsdp(self, *args, **kwargs)

        FullyShardedDataParallel.__init__ = fsdp_on_cpu  # type: ignore[method-assign]

    after_import("torch.distributed.fsdp", replace_in_fsdp)  # torch does not import it
    convert = staticmethod(keep_batch_norm)
    nn.SyncBatchNorm.convert_sync_batchnorm = convert  # type: ignore[method-assign]
    DistributedDataParallel.__init__ = ddp_on_cpu  # type: ignore[method-assign]
    torch.utils.data.DataLoader.__init__ = loader_on_cpu  # type: ignore[method-assign]


def _replace_groups(recorder: Any) -> None:
    """Make process groups and device meshes for GPUs use CPU ranks."""
    make_group, make_mesh = distributed_c10d.new_group, device_mesh.init_device_mesh

    @functools.wraps(make_group)
    def group_on_cpu(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if "nccl" in str(backend):
            recorder.replace("new_group('nccl') uses gloo", 2)
            backend = "gloo"
        return make_group(ranks, timeout, backend, *args, **kwargs)

    def mesh_on_cpu(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if is_gpu(device_type):
            recorder.replace("init_device_mesh on GPUs uses the CPU", 2)
            device_type = "cpu"
        return make_mesh(device_type, *args, **kwargs)

    torch.distributed.new_group = distributed_c10d.new_group = group_on_cpu
    torch.distributed.init_device_mesh = device_mesh.init_device_mesh = mesh_on_cpu


def _replace_devices(recorder: Any) -> None:
    """Make generators and `with torch.device` use the CPU, and let an `assert` that requires a GPU pass."""
    enter_device = DeviceContext.__init__

    def context_on_cpu(self: Any, device: Any) -> None:
        if is_gpu(device):
            recorder.replace("`with torch.device` of a GPU uses the CPU", 3)
            device = CPU
        enter_device(self, device)

    DeviceContext.__init__ = context_on_cpu  # type: ignore[method-assign]

    class GeneratorOnCpu(torch.Generator, metaclass=_AnyGenerator):
        """Replaces `torch.Generator`; a class, because scripts use the name in annotations."""

        def __new__(cls, device: Any = CPU) -> Any:
            if is_gpu(device):
                recorder.replace("torch.Generator on a GPU uses the CPU", 2)
            return super().__new__(cls, CPU)  # type: ignore[call-arg]

    # Pickles must contain the class name that scripts see.
    GeneratorOnCpu.__module__, GeneratorOnCpu.__qualname__ = "torch", "Generator"
    setattr(torch, "Generator", GeneratorOnCpu)  # noqa: B010 - mypy refuses an assignment

    is_available = torch.cuda.is_available

    def is_available_or_asserted() -> bool:
        """Return True in an `assert` of the script, which would otherwise end the script."""
        if not recorder.is_called_by_script(2):
            return is_available()
        caller = sys._getframe(1)  # noqa: SLF001 - a public function in all but its name
        line = linecache.getline(caller.f_code.co_filename, caller.f_lineno)
        return line.lstrip().startswith("assert") or is_available()

    setattr(torch.cuda, "is_available", is_available_or_asserted)  # noqa: B010 - mypy refuses an assignment


class HostEvent:
    """A point in time by the host's clock, in place of a `torch.cuda.Event`."""

    _at_s = math.nan

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        del stream
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds until another event."""
        return 1000 * (end._at_s - self._at_s)

    def query(self) -> bool:
        """Return True: earlier work on the CPU is already done."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Do nothing: there is nothing to wait for."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""


class _AnyGenerator(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)


class HostDevice(contextlib.nullcontext[None]):
    """The CPU, in place of a `torch.cuda.device`; a class, because torch checks for its instances."""

    idx = 0


class HostStream(contextlib.nullcontext[None]):
    """The CPU's order of work, in place of a `torch.cuda.Stream`."""

    def _do_nothing(self, *_args: Any) -> None:
        """Do nothing: earlier work on the CPU is already done."""

    wait_stream = wait_event = record_event = synchronize = _do_nothing

    def query(self) -> bool:
        """Return True: earlier work on the CPU is already done."""
        return True


def _replace_cuda(recorder: Any, num_ranks: int) -> None:
    """Make `torch.cuda` report one GPU per rank, with functions that do nothing.

    `is_available` stays False, except in an `assert`: a script that checks it can train on the CPU, and
    libraries that get True would use functions of CUDA that cannot be replaced.
    """

    def without_effect(name: str, result: Any) -> Any:
        def no_effect(*_args: Any, **_kwargs: Any) -> Any:
            recorder.replace(f"{name} has no effect", 2)
            return result

        return no_effect

    results = {**dict.fromkeys(_CUDA_DOES_NOTHING), **dict.fromkeys(_CUDA_SIZES, 0)}
    results |= {
        "stream": contextlib.nullcontext(),
        "get_rng_state": torch.empty(0, dtype=torch.uint8),
        "get_rng_state_all": [],
    }
    for name, result in results.items():
        setattr(torch.cuda, name, without_effect(f"torch.cuda.{name}", result))
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, without_effect(f"torch.cuda.nvtx.{name}", None))
    setattr(torch.cuda, "device", HostDevice)  # noqa: B010 - mypy refuses an assignment
    for name in ("Stream", "current_stream", "default_stream"):
        setattr(torch.cuda, name, HostStream)
    torch.Tensor.record_stream = without_effect(".record_stream", None)  # type: ignore[method-assign]
    for name in ("manual_seed", "manual_seed_all"):  # torch.manual_seed calls these, so they are not noted
        setattr(torch.cuda, name, lambda *_args, **_kwargs: None)

    class Event(HostEvent):
        """Replaces `torch.cuda.Event`; a class, because scripts use it in annotations and derive from it."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            recorder.replace("torch.cuda.Event uses the host's clock", 2)

    setattr(torch.cuda, "Event", Event)  # noqa: B010 - mypy refuses an assignment

    def replace_for_script(module: Any, name: str, result: Callable[[], Any]) -> None:
        """Replace a function's result for the script only; torch's own code gets the true result."""
        original = getattr(module, name)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return result() if recorder.is_called_by_script(2) else original(*args, **kwargs)

        setattr(module, name, replacement)

    replace_for_script(torch.cuda, "current_device", lambda: max(0, recorder.rank))
    replace_for_script(torch.cuda, "device_count", lambda: num_ranks)
    replace_for_script(torch.cuda, "get_device_name", lambda: "CPU rank")
    replace_for_script(torch.cuda, "is_bf16_supported", lambda: True)
    replace_for_script(torch.cuda, "get_device_capability", lambda: (0, 0))
    replace_for_script(torch.cuda, "mem_get_info", lambda: (0, 0))
    properties = {"name": "CPU rank", "total_memory": 0, "major": 0, "minor": 0, "multi_processor_count": 0}
    replace_for_script(torch.cuda, "get_device_properties", lambda: SimpleNamespace(**properties))
    setattr(torch, "set_default_device", without_effect("torch.set_default_device", None))  # noqa: B010
    if (accelerator := getattr(torch, "accelerator", None)) is not None:  # since torch 2.6
        replace_for_script(accelerator, "device_count", lambda: num_ranks)
        replace_for_script(accelerator, "current_accelerator", lambda: torch.device("cuda"))
        replace_for_script(accelerator, "is_available", lambda: True)
        for name in ("set_device_index", "synchronize"):
            setattr(accelerator, name, without_effect(f"torch.accelerator.{name}", None))


def _replace_autocast(recorder: Any) -> None:
    """Make autocast and GradScaler for GPUs do nothing: the CPU computes in float32."""
    make_scaler, enter = torch.amp.GradScaler.__init__, torch.amp.autocast.__init__

    @functools.wraps(make_scaler)
    def scaler_on_cpu(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        if device == "cuda":
            recorder.replace("GradScaler does not scale", 2)
            kwargs["enabled"] = False
        make_scaler(self, "cpu" if device == "cuda" else device, *args, **kwargs)

    @functools.wraps(enter)
    def autocast_on_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            recorder.replace("autocast for GPUs computes in float32", 2)
            args, kwargs = (), {"enabled": False}
            device_type = "cpu"
        enter(self, device_type, *args, **kwargs)

    torch.amp.GradScaler.__init__ = scaler_on_cpu  # type: ignore[method-assign]
    torch.amp.autocast.__init__ = autocast_on_cpu  # type: ignore[method-assign]
