"""Tests of the users of each GPU, with a simulated driver; no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.machine import hardware
from trainers.machine.hardware import GpuProcess


class FakeDriver:
    """Simulated NVML with two GPUs, of which the second does not respond.

    `lists` holds the processes per query.
    """

    NVMLError = RuntimeError

    def __init__(self, compute: Any = (), graphics: Any = ()) -> None:
        self.lists = {"compute": compute, "graphics": graphics}

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's names
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index == 1:
            raise RuntimeError("GPU is lost")
        return "handle 0"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return "GPU-0000"

    def _answer(self, name: str) -> Any:
        if self.lists[name] is None:
            raise RuntimeError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in self.lists[name]]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Any:  # noqa: N802
        return self._answer("compute")

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> Any:  # noqa: N802
        return self._answer("graphics")

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:  # noqa: N802
        if pid == 30:
            raise RuntimeError("Not Found")
        return b"/usr/bin/python3 -m something"

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.65"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13010


def use(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver | None) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: driver)


def test_processes_that_compute_and_draw_are_named_once_the_largest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, FakeDriver(compute=[(10, 5_000), (20, 9_000)], graphics=[(10, 5_000), (30, None)]))
    assert hardware.gpu_processes("handle 0") == [
        GpuProcess(pid=20, name="python3", memory_used_bytes=9_000),
        GpuProcess(pid=10, name="python3", memory_used_bytes=5_000, draws=True),
        GpuProcess(pid=30, name=None, memory_used_bytes=None, draws=True),
    ]


def test_a_driver_that_answers_half_is_believed_and_one_that_does_not_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, FakeDriver(compute=[(10, 5_000)], graphics=None))
    assert [process.pid for process in hardware.gpu_processes("handle 0") or []] == [10]
    use(monkeypatch, FakeDriver(compute=None, graphics=None))
    assert hardware.gpu_processes("handle 0") is None, "unknown is not nobody"
    use(monkeypatch, FakeDriver())
    assert hardware.gpu_processes("handle 0") == []


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        ("NVMLError_LibraryNotFound", "no_driver"),
        ("NVMLError_DriverNotLoaded", "no_driver"),
        ("NVMLError_LibRmVersionMismatch", "mismatch"),
        ("NVMLError_NoPermission", "other"),
    ],
)
def test_what_stands_between_us_and_the_gpus_is_told_apart(error: str, problem: str) -> None:
    import pynvml

    assert issubclass(getattr(pynvml, error), pynvml.NVMLError), "NVML still calls it so"
    assert hardware._problem_named(error) == problem


def test_cards_on_the_bus_are_counted_without_a_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, vendor, kind in (
        ("gpu", "0x10de", "0x030200"),
        ("its_sound", "0x10de", "0x040300"),
        ("other_gpu", "0x1002", "0x030000"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(hardware, "_PCI_DEVICES", str(tmp_path))
    assert hardware.num_nvidia_cards() == 1
    monkeypatch.setattr(hardware, "_PCI_DEVICES", str(tmp_path / "absent"))
    assert hardware.num_nvidia_cards() == 0


class NamedDriver(FakeDriver):
    """Three GPUs with different UUIDs."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"handle {index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"GPU-{'abc'[int(handle[-1])]}000"

    def nvmlDeviceGetIndex(self, handle: str) -> int:  # noqa: N802
        return int(handle[-1])


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [(0, "GPU-a000"), (1, "GPU-b000"), (2, "GPU-c000")]),
        ("2,0", [(0, "GPU-a000"), (2, "GPU-c000")]),
        ("GPU-b000", [(1, "GPU-b000")]),
        ("GPU-c", [(2, "GPU-c000")]),
        ("MIG-7", [(0, "MIG-7")]),
        ("", []),
    ],
)
def test_gpus_that_can_be_handed_out_have_their_index_and_the_name_cuda_knows(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[tuple[int, str]]
) -> None:
    use(monkeypatch, NamedDriver())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [(gpu.index, gpu.uuid) for gpu in hardware.visible_gpus()] == expected
    assert hardware.gpu_index("handle 2") == 2
