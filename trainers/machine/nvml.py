"""GPUs through NVML."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from trainers.machine import cuda_environment, facilities
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.host import Reading
from trainers.machine.os_errors import explain

# Device file of the Windows driver in WSL2.
_WINDOWS_DRIVER = Path("/dev/dxg")
# The kernel's fixed inode of the initial PID namespace (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


def sees_all_processes() -> bool:
    """Return True if the process ids from NVML are valid in this PID namespace. In most containers and in
    WSL2 they are not: NVML lists only the container's processes, or none, or ids that belong to other
    processes.
    """
    if _WINDOWS_DRIVER.exists():
        return False
    # None on systems without PID namespaces (not Linux).
    return facilities.read_link("/proc/self/ns/pid") in (None, _FIRST_PID_NAMESPACE)


NvmlProblem = Literal["no_library", "no_driver", "mismatch", "other"]

_PCI_DEVICES = "/sys/bus/pci/devices"
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"
# Constants of nvml.h: NVML_TEMPERATURE_GPU, and the version field of nvmlMemory_v2_t.
_TEMPERATURE_OF_GPU = 0
_MEMORY_V2 = 0x02000028
_VOLTA, _AMPERE = (7, 0), (8, 0)
_NEEDS_AMPERE = {
    "bf16": "has no bf16 arithmetic: torch emulates bf16, and torch.compile is not used with it.",
    "tf32": "has no TF32: the run computes in fp32.",
}
NO_TELEMETRY = "GPU telemetry is not available"
# Drivers before 510 have only the second version of these functions.
_PROCESS_LISTS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
}
_TELEMETRY = {
    "utilization": ("nvmlDeviceGetUtilizationRates",),
    "memory": ("nvmlDeviceGetMemoryInfo",),
    "processes": tuple(question for questions in _PROCESS_LISTS.values() for question in questions),
}


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory on a GPU; `draws` marks graphics programs such as a desktop."""

    pid: int
    name: str | None = None
    memory_used_bytes: int | None = None
    draws: bool = False


@dataclass(frozen=True, kw_only=True)
class VisibleGpu:
    """A GPU: its index on the machine, its CUDA UUID, and its NVML handle.

    Attributes:
        index: for a MIG instance, which has no index, its position among the visible GPUs.
        is_part: True for a MIG instance, or a GPU divided into instances that NVML does not list.
    """

    index: int
    uuid: str
    handle: Any | None
    is_part: bool = False


@functools.cache
def _nvml_and_problem() -> tuple[ModuleType | None, NvmlProblem | None, str]:
    """Return pynvml, initialised, or the kind of failure and NVML's error text."""
    try:
        import pynvml
    except ImportError:
        return None, "no_library", "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, *_other_errors(pynvml)) as error:
        return None, _problem_named(type(error).__name__), explain(error)
    return pynvml, None, ""


def _other_errors(nvml: ModuleType) -> tuple[type[Exception], ...]:
    """Return the exceptions that pynvml raises in addition to NVMLError.

    A driver before 510 lacks functions: NVMLLibraryMismatchError, which is not an NVMLError. An older pynvml
    itself lacks functions: AttributeError.
    """
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", AttributeError)
    return (mismatch, AttributeError, OSError, UnicodeDecodeError)


def _answer(question: str, *arguments: Any, **more: Any) -> tuple[Any, str]:
    """Return NVML's answer and "", or None and the error text."""
    nvml = _nvml()
    if nvml is None:
        return None, _nvml_and_problem()[2]
    try:
        return getattr(nvml, question)(*arguments, **more), ""
    except (nvml.NVMLError, *_other_errors(nvml)) as error:
        is_missing = not isinstance(error, nvml.NVMLError)
        return None, "the driver lacks this function" if is_missing else explain(error)


def _ask(question: str, *arguments: Any, **more: Any) -> Any:
    """Return NVML's answer, or None."""
    return _answer(question, *arguments, **more)[0]


def _text(answer: Any) -> str | None:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _problem_named(error_class: str) -> NvmlProblem:
    if error_class in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return "no_driver"
    return "mismatch" if error_class == "NVMLError_LibRmVersionMismatch" else "other"


def _nvml() -> ModuleType | None:
    """Return pynvml, initialised, or None if the library or the driver is missing."""
    return _nvml_and_problem()[0]


def nvml_problem() -> NvmlProblem | None:
    """Return the kind of problem that prevents NVML queries, or None if NVML works."""
    return _nvml_and_problem()[1]


def num_gpus() -> int:
    """Return the number of GPUs that a job started by this process would see."""
    return len(visible_gpus())


def visible_gpus() -> list[VisibleGpu]:
    """Return the responding GPUs that a job started by this process would see: whole GPUs by index, then
    parts.

    A GPU in MIG mode is replaced by its instances. CUDA uses one instance per process, so each is selected by
    its UUID. Indices in CUDA_VISIBLE_DEVICES are NVML's; see `names_are_unclear`.
    """
    by_index = _gpus_by_index()
    names = cuda_environment.visible_names()
    gpus, parts = [], list[VisibleGpu]()
    if names is None:
        gpus = list(by_index.values())
    for name in names or ():
        if name.startswith(cuda_environment.MIG):
            parts.append(VisibleGpu(index=0, uuid=name, handle=gpu_handle(name), is_part=True))
            continue
        selected = [index for index, gpu in by_index.items() if _is_selected(name, index, gpu)]
        if len(selected) != 1:
            break  # CUDA ignores all names after an unknown one
        gpus.append(by_index[selected[0]])
    answering = sorted((gpu for gpu in gpus if gpu is not None), key=lambda gpu: gpu.index)
    undivided = [gpu for gpu in answering if not is_divided(gpu.handle)]
    for gpu in answering:
        if gpu not in undivided:
            parts += _parts_of(gpu)
    return undivided + [replace(part, index=len(undivided) + number) for number, part in enumerate(parts)]


def _parts_of(gpu: VisibleGpu) -> list[VisibleGpu]:
    """Return the MIG instances of a divided GPU, or the GPU itself if NVML does not list them."""
    max_parts = _ask("nvmlDeviceGetMaxMigDeviceCount", gpu.handle)
    if max_parts is None:
        return [replace(gpu, is_part=True)]
    handles = [
        _ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, number) for number in range(int(max_parts))
    ]
    named_parts = [(_uuid_of(handle), handle) for handle in handles if handle is not None]
    return [
        VisibleGpu(index=0, uuid=uuid, handle=handle, is_part=True)
        for uuid, handle in named_parts
        if uuid is not None
    ]


def _gpus_by_index() -> dict[int, VisibleGpu | None]:
    """Return every GPU of the machine by index; None for a GPU that does not respond."""
    gpus: dict[int, VisibleGpu | None] = {}
    for index, handle in all_gpus().items():
        uuid = None if handle is None else _uuid_of(handle)
        gpus[index] = None if uuid is None else VisibleGpu(index=index, uuid=uuid, handle=handle)
    return gpus


def all_uuids() -> list[str]:
    """Return the UUIDs of all responding GPUs of the machine, including those hidden from runs."""
    return [gpu.uuid for gpu in _gpus_by_index().values() if gpu is not None]


def _is_selected(name: str, index: int, gpu: VisibleGpu | None) -> bool:
    """Return True if a name selects this GPU: its index, or a prefix of its UUID."""
    return name == str(index) or (
        gpu is not None and name.startswith(cuda_environment.GPU) and gpu.uuid.startswith(name)
    )


def names_are_unclear() -> bool:
    """Return True if indices in CUDA_VISIBLE_DEVICES may select other GPUs in CUDA than in NVML.

    CUDA puts the fastest GPU first, and NVML cannot query that order; for equal GPUs both orders agree.
    """
    if not cuda_environment.names_by_index():
        return False
    kinds = {read_gpu(handle).name for handle in all_gpus().values() if handle is not None}
    return len(kinds) > 1


def _uuid_of(handle: Any) -> str | None:
    return _text(_ask("nvmlDeviceGetUUID", handle))


def gpu_index(handle: Any) -> int | None:
    """Return a GPU's index on the machine, independent of CUDA_VISIBLE_DEVICES."""
    index = _ask("nvmlDeviceGetIndex", handle)
    return None if index is None else int(index)


def all_gpus() -> dict[int, Any | None]:
    """Return the handles of all GPUs of the machine by index, hidden ones included; None: no response."""
    count = int(_ask("nvmlDeviceGetCount") or 0)
    # A GPU has no handle if, for example, it fell off the bus.
    return {index: _ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)}


def num_nvidia_cards() -> int:
    """Return the number of NVIDIA graphics cards on the bus, with or without a driver."""
    num_cards = 0
    for device in facilities.names_in(_PCI_DEVICES):
        vendor = facilities.read(f"{_PCI_DEVICES}/{device}/vendor") or ""
        kind = facilities.read(f"{_PCI_DEVICES}/{device}/class") or ""
        num_cards += vendor.strip() == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS)
    return num_cards


def named(uuid: str) -> str:
    """Return a GPU's UUID as NVML and CUDA_VISIBLE_DEVICES write it; torch omits the prefix."""
    is_named = uuid.startswith((cuda_environment.GPU, cuda_environment.MIG))
    return uuid if is_named else f"{cuda_environment.GPU}{uuid}"


def gpu_handle(uuid: str) -> Any | None:
    """Return the handle of the GPU with this UUID (as torch prints it), or None."""
    handle = _ask("nvmlDeviceGetHandleByUUID", named(uuid))
    # torch omits the prefix of a MIG instance's UUID, too.
    return (
        handle if handle is not None else _ask("nvmlDeviceGetHandleByUUID", f"{cuda_environment.MIG}{uuid}")
    )


def compute_capability(handle: Any) -> tuple[int, int] | None:
    """Return the compute capability, such as (9, 0), of a GPU or a MIG instance, or None; avoids CUDA."""
    capability = _ask("nvmlDeviceGetCudaComputeCapability", handle)
    if capability is None:
        parent = _ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        capability = None if parent is None else _ask("nvmlDeviceGetCudaComputeCapability", parent)
    return None if capability is None else (int(capability[0]), int(capability[1]))


def precision_obstacle(precision: str, name: str | None, capability: tuple[int, int]) -> Obstacle | None:
    """Return why a precision does not speed up this GPU, with a better choice, or None if it does.

    bf16 and TF32 begin with Ampere (8.0), fp16 on tensor cores with Volta (7.0): CUDA C++ Programming Guide,
    "Compute Capabilities".
    """
    if precision not in _NEEDS_AMPERE or capability >= _AMPERE:
        return None
    card = f"{name or 'This GPU'} (compute capability {capability[0]}.{capability[1]})"
    has_fast_fp16 = capability >= _VOLTA
    return Obstacle(
        reason=f"{card} {_NEEDS_AMPERE[precision]}",
        remedy="Choose fp16, which is fast on this GPU." if has_fast_fp16 else "Choose fp32.",
    )


def is_divided(handle: Any) -> bool:
    """Return True if a GPU is divided into MIG instances, which CUDA then lists in its place, each with a
    UUID. False for an instance, regardless of the mode that NVML reports for its GPU.
    """
    if _ask("nvmlDeviceIsMigDeviceHandle", handle):
        return False
    modes = _ask("nvmlDeviceGetMigMode", handle)  # current, and after the next reset
    return modes is not None and bool(modes[0])


def read_gpu(handle: Any) -> Reading:
    """Read one GPU through NVML."""
    rates = _ask("nvmlDeviceGetUtilizationRates", handle)
    memory = _ask("nvmlDeviceGetMemoryInfo", handle)
    power_milliwatts = _ask("nvmlDeviceGetPowerUsage", handle)
    return Reading(
        name=_text(_ask("nvmlDeviceGetName", handle)),
        utilization_percent=None if rates is None else float(rates.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        temperature_celsius=_ask("nvmlDeviceGetTemperature", handle, _TEMPERATURE_OF_GPU),
        power_watts=None if power_milliwatts is None else power_milliwatts / 1000,
    )


def telemetry_problem() -> str | None:
    """Return a sentence about the readings that NVML cannot give for this machine's GPUs, with the reason.
    None if NVML gives all readings, or without an NVIDIA card.
    """
    _, problem, text = _nvml_and_problem()
    if problem is not None:
        return f"{NO_TELEMETRY}: {text}." if num_nvidia_cards() else None
    unanswered: dict[str, list[str]] = {}
    for index, handle in all_gpus().items():
        if handle is None:
            continue  # reported elsewhere as a GPU that does not respond
        for name, questions in _TELEMETRY.items():
            reasons = [_answer(question, handle)[1] for question in questions]
            if all(reasons):
                unanswered.setdefault(f"{name} ({reasons[0]})", []).append(str(index))
    if not unanswered:
        return None
    parts = [f"{reading} of GPU {', '.join(indices)}" for reading, indices in unanswered.items()]
    return (
        f"{NO_TELEMETRY}: {'; '.join(parts)}. The driver is {driver_versions()[0] or 'of unknown version'}."
    )


def memory_held_bytes(handle: Any) -> int | None:
    """Return the memory that processes hold on a GPU, including the driver's if not separable."""
    # Version 2 of this function excludes the driver's reserved memory, which version 1 counts as used.
    memory = _ask("nvmlDeviceGetMemoryInfo", handle, version=_MEMORY_V2)
    return read_gpu(handle).memory_used_bytes if memory is None else int(memory.used)


def gpu_divided_into(uuid: str) -> Any | None:
    """Return the handle of the GPU that a MIG instance belongs to, or None if unknown."""
    part = _ask("nvmlDeviceGetHandleByUUID", uuid)
    return None if part is None else _ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part)


def gpu_processes(handle: Any) -> list[GpuProcess] | None:
    """Return the processes that hold memory on a GPU, largest first, or None if unknown."""
    memory_of: dict[int, int | None] = {}
    drawing: set[int] = set()
    answers = 0
    for kind, questions in _PROCESS_LISTS.items():
        found = next((found for question in questions if (found := _ask(question, handle)) is not None), None)
        if found is None:
            continue
        answers += 1
        for item in found:
            # A program that computes and draws is in both lists, with the same memory.
            known_bytes = memory_of.get(item.pid)
            memory_of[item.pid] = item.usedGpuMemory if known_bytes is None else known_bytes
        if kind == "graphics":
            drawing.update(item.pid for item in found)
    if not answers:
        return None
    ordered = sorted(memory_of.items(), key=lambda entry: (-(entry[1] or 0), entry[0]))
    return [
        GpuProcess(
            pid=pid,
            name=_gpu_process_name(pid),
            memory_used_bytes=memory,
            draws=pid in drawing,
        )
        for pid, memory in ordered
    ]


def _gpu_process_name(pid: int) -> str | None:
    name = _text(_ask("nvmlSystemGetProcessName", pid))
    return None if name is None else Path(name.split(" ")[0]).name or None


def driver_versions() -> tuple[str | None, str | None]:
    """Return the NVIDIA driver's version and the latest CUDA version it supports, such as `13.0`."""
    driver, cuda = _text(_ask("nvmlSystemGetDriverVersion")), _ask("nvmlSystemGetCudaDriverVersion")
    return driver, None if cuda is None else f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}"
