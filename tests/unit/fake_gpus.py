"""A made-up driver of NVIDIA's with GPUs of several kinds; nothing of it is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """What the made-up driver answers of one GPU; `pids` compute on it."""

    uuid: str
    name: str = "NVIDIA Fake 80GB"
    capability: tuple[int, int] = (9, 0)
    is_divided: bool = False
    is_silent: bool = False
    pids: tuple[int, ...] = ()


class FakeNvml:
    """Answers as pynvml does, a handle being the GPU itself."""

    NVMLError = RuntimeError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        self.gpus = gpus

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's names
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        if self.gpus[index].is_silent:
            raise RuntimeError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise RuntimeError("Not Found")

    def nvmlDeviceGetIndex(self, handle: FakeGpu) -> int:  # noqa: N802
        return self.gpus.index(handle)

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> bytes:  # noqa: N802
        return handle.name.encode()

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return handle.capability

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:  # noqa: N802
        return [int(handle.is_divided), 0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=5 * 10**8) for pid in handle.pids]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: FakeGpu) -> list[Any]:  # noqa: N802
        return []

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:  # noqa: N802
        return b"python"

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"535.183"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12020

    def _fail(self, *_: object) -> None:
        raise RuntimeError("Not Supported")

    nvmlDeviceGetUtilizationRates = nvmlDeviceGetMemoryInfo = nvmlDeviceGetTemperature = _fail  # noqa: N815
    nvmlDeviceGetPowerUsage = _fail  # noqa: N815
