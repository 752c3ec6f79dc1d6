"""The one gateway to NVML; both halves read GPUs here.

A reading that cannot be had is None, never 0. Without the library, or without a GPU, everything
still works with fewer readings.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from trainers.machine import cuda_environment
from trainers.machine.processor import Reading

NvmlProblem = Literal["no_library", "no_driver", "mismatch", "other"]

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory on a GPU; `draws` marks a desktop and the like."""

    pid: int
    name: str | None = None
    memory_used_bytes: int | None = None
    draws: bool = False


@dataclass(frozen=True, kw_only=True)
class VisibleGpu:
    """A GPU by its index on the machine, by the name CUDA knows it by, and for NVML's questions.

    A part of a GPU (MIG) has no index and no questions of its own: it has its place among the visible ones.
    """

    index: int
    uuid: str
    handle: Any | None


@functools.cache
def _nvml_and_problem() -> tuple[ModuleType | None, NvmlProblem | None]:
    """Return pynvml, initialised, or what stands in the way."""
    try:
        import pynvml
    except ImportError:
        return None, "no_library"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _problem_named(type(error).__name__)
    return pynvml, None


def _problem_named(error_class: str) -> NvmlProblem:
    if error_class in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return "no_driver"
    return "mismatch" if error_class == "NVMLError_LibRmVersionMismatch" else "other"


def _nvml() -> ModuleType | None:
    """Return pynvml, initialised; None where there is no library or no driver."""
    return _nvml_and_problem()[0]


def nvml_problem() -> NvmlProblem | None:
    """Say why no GPU can be asked for; None where NVML answers."""
    return _nvml_and_problem()[1]


def num_gpus() -> int:
    """Return how many GPUs a job started here would see."""
    return len(visible_gpus())


def visible_gpus() -> list[VisibleGpu]:
    """Return the GPUs a job started here would see and that answer, in the order of their indices.

    Indices in CUDA_VISIBLE_DEVICES are taken for NVML's: `names_are_unclear` tells where they may not be.
    """
    there = _gpus_by_index()
    names = cuda_environment.visible_names()
    if names is None:
        return [gpu for gpu in there.values() if gpu is not None]
    found, parts = [], []
    for place, name in enumerate(names):
        if name.startswith(cuda_environment.MIG):
            parts.append(VisibleGpu(index=place, uuid=name, handle=None))
            continue
        meant = [index for index, gpu in there.items() if _is_meant(name, index, gpu)]
        if len(meant) != 1:
            break  # CUDA sees none of those that come after a name it does not know
        found.append(there[meant[0]])
    answering = [gpu for gpu in found if gpu is not None]
    return sorted(answering, key=lambda gpu: gpu.index) + parts


def _gpus_by_index() -> dict[int, VisibleGpu | None]:
    """Return every GPU of the machine by index; None is one that is silent."""
    found: dict[int, VisibleGpu | None] = {}
    for index, handle in all_gpus().items():
        uuid = None if handle is None else _uuid_of(handle)
        found[index] = None if uuid is None else VisibleGpu(index=index, uuid=uuid, handle=handle)
    return found


def all_uuids() -> list[str]:
    """Return the UUID of every GPU of the machine that answers, also of those hidden from runs."""
    return [gpu.uuid for gpu in _gpus_by_index().values() if gpu is not None]


def _is_meant(name: str, index: int, gpu: VisibleGpu | None) -> bool:
    """Tell whether a name is this GPU's: its index, or its UUID as far as it is written out."""
    return name == str(index) or (
        gpu is not None and name.startswith(cuda_environment.GPU) and gpu.uuid.startswith(name)
    )


def names_are_unclear() -> bool:
    """Tell whether indices in CUDA_VISIBLE_DEVICES may mean other GPUs to CUDA than to NVML.

    CUDA puts the fastest first, which cannot be asked of NVML; among equal ones both count alike.
    """
    if not cuda_environment.names_by_index():
        return False
    kinds = {read_gpu(handle).name for handle in all_gpus().values() if handle is not None}
    return len(kinds) > 1


def _uuid_of(handle: Any) -> str | None:
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"
    try:
        uuid = nvml.nvmlDeviceGetUUID(handle)
    except nvml.NVMLError:
        return None
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def gpu_index(handle: Any) -> int | None:
    """Return a GPU's index on the machine, whatever a job may see of it."""
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"
    try:
        return int(nvml.nvmlDeviceGetIndex(handle))
    except nvml.NVMLError:
        return None


def all_gpus() -> dict[int, Any | None]:
    """Return every GPU of the machine by index, also those hidden from runs; None is one that is silent."""
    nvml = _nvml()
    if nvml is None:
        return {}
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return {}
    return {index: _handle_at(nvml, index) for index in range(count)}


def _handle_at(nvml: ModuleType, index: int) -> Any | None:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:  # a GPU that fell off the bus
        return None


def num_nvidia_cards() -> int:
    """Return the NVIDIA graphics cards on the bus, with a driver or without."""
    found = 0
    for device in _PCI_DEVICES.glob("*") if _PCI_DEVICES.is_dir() else []:
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
        except OSError:
            continue
        found += vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS)
    return found


def gpu_handles() -> list[Any]:
    """Return a handle for every GPU a job started here would see, for `read_gpu`."""
    return [gpu.handle for gpu in visible_gpus() if gpu.handle is not None]


def named(uuid: str) -> str:
    """Return a GPU's UUID as NVML and CUDA_VISIBLE_DEVICES write it; torch leaves the beginning out."""
    is_named = uuid.startswith((cuda_environment.GPU, cuda_environment.MIG))
    return uuid if is_named else f"{cuda_environment.GPU}{uuid}"


def gpu_handle(uuid: str) -> Any | None:
    """Return the handle of the GPU of this UUID (as torch prints it), or None."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(named(uuid))
    except nvml.NVMLError:
        return None


def compute_capability(handle: Any) -> tuple[int, int] | None:
    """Return a GPU's compute capability, as (9, 0), without calling CUDA; None where it is not said."""
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return None
    return int(major), int(minor)


def is_divided(handle: Any) -> bool:
    """Tell whether a GPU is in parts (MIG): then what CUDA sees of it is a part, with a UUID of its own."""
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a model without
        return False
    return bool(current)


def read_gpu(handle: Any) -> Reading:
    """Read one GPU through NVML."""
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            return question(handle, *arguments)
        except nvml.NVMLError:
            return None

    name = ask(nvml.nvmlDeviceGetName)
    rates = ask(nvml.nvmlDeviceGetUtilizationRates)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    power_milliwatts = ask(nvml.nvmlDeviceGetPowerUsage)
    return Reading(
        name=name.decode() if isinstance(name, bytes) else name,
        utilization_percent=None if rates is None else float(rates.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        temperature_celsius=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_watts=None if power_milliwatts is None else power_milliwatts / 1000,
    )


def memory_held_bytes(handle: Any) -> int | None:
    """Return the memory that processes hold on a GPU, and the driver's own where that is not told apart."""
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"
    try:
        # The second version names what the driver reserves for itself, which the first counts as used.
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except nvml.NVMLError:  # an older driver
        return read_gpu(handle).memory_used_bytes


def gpu_divided_into(uuid: str) -> Any | None:
    """Return the handle of the GPU that a part (MIG) belongs to; None where it is not known."""
    nvml = _nvml()
    assert nvml is not None, "a part was seen by NVML"
    try:
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None


def gpu_processes(handle: Any) -> list[GpuProcess] | None:
    """Return who holds memory on a GPU, the largest first; None where the driver does not say."""
    nvml = _nvml()
    assert nvml is not None, "a handle comes from NVML"
    questions = (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)
    memory_of: dict[int, int | None] = {}
    drawing: set[int] = set()
    answers = 0
    for question in questions:
        try:
            found = question(handle)
        except nvml.NVMLError:
            continue
        answers += 1
        for item in found:
            # A program that computes and draws is in both lists, with the same memory.
            known = memory_of.get(item.pid)
            memory_of[item.pid] = item.usedGpuMemory if known is None else known
        if question is questions[1]:
            drawing.update(item.pid for item in found)
    if not answers:
        return None
    ordered = sorted(memory_of.items(), key=lambda entry: (-(entry[1] or 0), entry[0]))
    return [
        GpuProcess(
            pid=pid,
            name=_gpu_process_name(nvml, pid),
            memory_used_bytes=memory,
            draws=pid in drawing,
        )
        for pid, memory in ordered
    ]


def _gpu_process_name(nvml: ModuleType, pid: int) -> str | None:
    try:
        name = nvml.nvmlSystemGetProcessName(pid)
    except nvml.NVMLError:
        return None
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Path(text.split(" ")[0]).name or None


def driver_versions() -> tuple[str | None, str | None]:
    """Return the NVIDIA driver's version and the newest CUDA it can run, such as `13.0`."""
    nvml = _nvml()
    if nvml is None:
        return None, None
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    except nvml.NVMLError:
        return None, None
    return driver.decode() if isinstance(driver, bytes) else str(
        driver
    ), f"{cuda // 1000}.{cuda % 1000 // 10}"
