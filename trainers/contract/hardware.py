"""The one gateway to NVML and psutil; both halves read devices here.

A reading that cannot be had is None, never 0. Without the libraries, or without a GPU, everything
still works with fewer readings.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at a GPU or at a process on the CPU."""

    name: str | None = None
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


@functools.cache
def _nvml() -> ModuleType | None:
    """Return pynvml, initialised; None where there is no library or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    module: ModuleType = pynvml
    return module


@functools.cache
def _psutil() -> ModuleType | None:
    try:
        import psutil
    except ImportError:
        return None
    module: ModuleType = psutil
    return module


def num_gpus() -> int:
    """Return how many GPUs a job started here would see."""
    nvml = _nvml()
    if nvml is None:
        return 0
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([item for item in visible.split(",") if item.strip() not in ("", "-1")]))


def num_cores() -> int:
    """Return the CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_handles() -> list[Any]:
    """Return a handle for every GPU of the machine that answers, for `read_gpu`."""
    nvml = _nvml()
    if nvml is None:
        return []
    handles = []
    for index in range(num_gpus()):
        try:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:  # a GPU that fell off the bus
            continue
    return handles


def gpu_handle(uuid: str) -> Any | None:
    """Return the handle of the GPU of this UUID (as torch prints it), or None."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    except nvml.NVMLError:
        return None


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


class ProcessReader:
    """Reads this process on the CPU: its share of the cores it was given, and its memory."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        psutil = _psutil()
        self._process = None if psutil is None else psutil.Process()
        if self._process is not None:
            # The first answer is always 0: it only starts the clock.
            self._process.cpu_percent()

    def read(self) -> Reading:
        """Return the utilization since the last call, 100% being all threads busy."""
        if self._process is None:
            return Reading(name=cpu_name())
        psutil = _psutil()
        assert psutil is not None
        busy = self._process.cpu_percent() / self._num_threads
        return Reading(
            name=cpu_name(),
            utilization_percent=round(min(100.0, busy), 1),
            memory_used_bytes=int(self._process.memory_info().rss),
            memory_total_bytes=int(psutil.virtual_memory().total),
        )


def resident_bytes() -> int | None:
    """Return this process's resident memory."""
    psutil = _psutil()
    return None if psutil is None else int(psutil.Process().memory_info().rss)


@functools.cache
def cpu_name() -> str:
    """Return the processor's name, as the system gives it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return "CPU"


def machine_snapshot() -> dict[str, Any]:
    """Return the machine's own readings: CPU share, memory, disk-independent; None where unknown."""
    psutil = _psutil()
    if psutil is None:
        return {"cpu_percent": None, "memory_used_bytes": None, "memory_total_bytes": None}
    memory = psutil.virtual_memory()
    return {
        "cpu_percent": psutil.cpu_percent(),
        "memory_used_bytes": int(memory.total - memory.available),
        "memory_total_bytes": int(memory.total),
    }
