"""A fake NVIDIA driver with several kinds of GPUs; no real GPU is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """The fake driver's answers for one GPU; `pids` are the processes that compute on it."""

    uuid: str
    name: str = "NVIDIA Fake 80GB"
    capability: tuple[int, int] = (9, 0)
    is_divided: bool = False
    is_silent: bool = False
    pids: tuple[int, ...] = ()
    memory_bytes: int | None = None
    instances: tuple[FakeGpu, ...] = ()


class FakeNvml:
    """Fake of pynvml; a handle is the `FakeGpu` itself, for a GPU and for a MIG instance."""

    NVMLError = RuntimeError

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        self.gpus = gpus

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's names
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        if self.gpus[index].is_silent:
            raise RuntimeError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        parts = [part for gpu in self.gpus for part in gpu.instances]
        for gpu in (*self.gpus, *parts):
            if gpu.uuid == uuid:
                return gpu
        raise RuntimeError("Not Found")

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:  # noqa: N802
        if not handle.instances:
            raise RuntimeError("Not Supported")
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        if index >= len(handle.instances):
            raise RuntimeError("Not Found")
        return handle.instances[index]

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int = 1) -> Any:  # noqa: N802
        if handle.memory_bytes is None:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(total=handle.memory_bytes, used=10**9)

    def nvmlDeviceGetIndex(self, handle: FakeGpu) -> int:  # noqa: N802
        return self.gpus.index(handle)

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> bytes:  # noqa: N802
        return handle.name.encode()

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return handle.capability

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:  # noqa: N802
        return [int(handle.is_divided or self.nvmlDeviceIsMigDeviceHandle(handle)), 0]

    def nvmlDeviceIsMigDeviceHandle(self, handle: FakeGpu) -> bool:  # noqa: N802
        return handle.uuid.startswith("MIG-")

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

    nvmlDeviceGetUtilizationRates = nvmlDeviceGetTemperature = nvmlDeviceGetPowerUsage = _fail  # noqa: N815


class MismatchError(Exception):
    """Error that pynvml raises for an unversioned function that the driver lacks; not an NVMLError."""


class OldNvml(FakeNvml):
    """A driver before 510: no v3 functions for process lists and no v2 function for memory."""

    NVMLLibraryMismatchError = MismatchError

    def _mismatch(self, *_: object, **__: object) -> None:
        raise MismatchError("Unversioned function called")

    nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses = _mismatch  # noqa: N815

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: FakeGpu) -> list[Any]:  # noqa: N802
        return super().nvmlDeviceGetComputeRunningProcesses(handle)

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"470.256.02"
