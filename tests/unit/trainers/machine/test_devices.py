"""Tests of devices: visible GPUs, their users, and readings that are not available."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.fake_gpus import FakeGpu, FakeNvml, MismatchError
from trainers.engines.local.engine import LocalEngine
from trainers.machine import cuda_environment, host, nvml
from trainers.machine.nvml import GpuProcess


def use(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeNvml(gpus))


def box(num_gpus: int) -> list[FakeGpu]:
    return [FakeGpu(uuid=f"GPU-{'abcdefgh'[index]}000") for index in range(num_gpus)]


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables after each test."""
    for name in (cuda_environment.VISIBLE, cuda_environment.ORDER, cuda_environment.OBSTACLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 8),
        ("", 0),
        ("0,1,2,3,4,5,6,7,8,9", 8),
        ("0,-1,1", 1),
        ("9,0", 0),
        ("1,1", 0),
        ("GPU-a,GPU-c000", 2),
        ("GPU-", 0),
    ],
)
def test_gpus_are_counted_as_cuda_reads_their_names(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: int
) -> None:
    use(monkeypatch, *box(8))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.num_gpus() == expected


WHOLE = FakeGpu(uuid="GPU-0000", memory_bytes=40 * 10**9)
PARTS = tuple(FakeGpu(uuid=f"MIG-{place}", memory_bytes=5 * 10**9, pids=(70 + place,)) for place in range(2))
DIVIDED = FakeGpu(uuid="GPU-1111", memory_bytes=40 * 10**9, is_divided=True, instances=PARTS)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [(0, "GPU-0000", False), (1, "MIG-0", True), (2, "MIG-1", True)]),
        ("1", [(0, "MIG-0", True), (1, "MIG-1", True)]),
        ("GPU-1111", [(0, "MIG-0", True), (1, "MIG-1", True)]),
        ("MIG-1", [(0, "MIG-1", True)]),
        ("MIG-elsewhere", [(0, "MIG-elsewhere", True)]),
    ],
)
def test_of_a_divided_gpu_its_instances_are_seen_each_with_its_own_users(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[tuple[int, str, bool]]
) -> None:
    use(monkeypatch, WHOLE, DIVIDED)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = nvml.visible_gpus()
    assert [(gpu.index, gpu.uuid, gpu.is_part) for gpu in found] == expected
    for gpu in found:
        if gpu.uuid == "MIG-1":
            assert [process.pid for process in nvml.gpu_processes(gpu.handle) or ()] == [71]


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "most", "memory"),
    [
        ((DIVIDED,), 2, 1, 5 * 10**9),
        ((WHOLE, DIVIDED), 3, 1, 5 * 10**9),
        ((WHOLE, replace(WHOLE, uuid="GPU-2222"), DIVIDED), 4, 2, 5 * 10**9),
        ((WHOLE, replace(WHOLE, uuid="GPU-2222", capability=(7, 5))), 2, None, 40 * 10**9),
    ],
    ids=["two instances", "one whole", "two whole", "none divided"],
)
def test_a_run_is_offered_one_mig_instance_and_its_memory(
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[FakeGpu, ...],
    num_gpus: int,
    most: int | None,
    memory: int | None,
) -> None:
    use(monkeypatch, *gpus)
    offered = LocalEngine().capacity()
    assert (offered.num_gpus, offered.max_gpus_per_run) == (num_gpus, most)
    assert offered.gpu_memory_bytes == memory
    assert offered.gpu_capability == min(gpu.capability for gpu in gpus)


@pytest.mark.parametrize(
    "error", [MismatchError("x"), RuntimeError("Function Not Found"), OSError("x"), AttributeError("x")]
)
def test_whatever_nvml_raises_a_reading_is_none(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Broken:
        NVMLError, NVMLLibraryMismatchError = RuntimeError, MismatchError

        def __getattr__(self, question: str) -> Any:
            def raise_it(*_: object, **__: object) -> None:
                raise error

            return raise_it

    monkeypatch.setattr(nvml, "_nvml", Broken)
    assert nvml.visible_gpus() == [] and nvml.all_gpus() == {}
    assert nvml.read_gpu(0) == host.Reading()
    assert nvml.gpu_processes(0) is None and nvml.memory_held_bytes(0) is None
    assert nvml.compute_capability(0) is None and nvml.gpu_index(0) is None
    assert nvml.driver_versions() == (None, None) and not nvml.is_divided(0)
    assert nvml.gpu_divided_into("MIG-1") is None


@pytest.mark.parametrize(
    ("precision", "capability", "reason", "remedy"),
    [
        ("bf16", (7, 5), "Tesla T4 (compute capability 7.5) has no bf16 arithmetic", "Choose fp16"),
        ("tf32", (7, 5), "has no TF32", "Choose fp16"),
        ("bf16", (8, 0), None, None),
        ("fp32", (5, 0), None, None),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_said_with_the_one_it_has(
    precision: str, capability: tuple[int, int], reason: str | None, remedy: str | None
) -> None:
    found = nvml.precision_obstacle(precision, "Tesla T4", capability)
    if reason is None or remedy is None:
        assert found is None
    else:
        assert found is not None and reason in found.reason and remedy in found.remedy


class FakeDriver:
    """Simulated NVML; `lists` holds the processes per query."""

    NVMLError = RuntimeError

    def __init__(self, compute: Any = (), graphics: Any = ()) -> None:
        self.lists = {"compute": compute, "graphics": graphics}

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


def test_processes_that_compute_and_draw_are_named_once_the_largest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        nvml,
        "_nvml",
        lambda: FakeDriver(compute=[(10, 5_000), (20, 9_000)], graphics=[(10, 5_000), (30, None)]),
    )
    assert nvml.gpu_processes("handle 0") == [
        GpuProcess(pid=20, name="python3", memory_used_bytes=9_000),
        GpuProcess(pid=10, name="python3", memory_used_bytes=5_000, draws=True),
        GpuProcess(pid=30, name=None, memory_used_bytes=None, draws=True),
    ]


def test_a_driver_that_answers_half_is_believed_and_one_that_does_not_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeDriver(compute=[(10, 5_000)], graphics=None))
    assert [process.pid for process in nvml.gpu_processes("handle 0") or []] == [10]
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeDriver(compute=None, graphics=None))
    assert nvml.gpu_processes("handle 0") is None, "unknown is not nobody"
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeDriver())
    assert nvml.gpu_processes("handle 0") == []


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
    assert nvml._problem_named(error) == problem


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
    monkeypatch.setattr(nvml, "_PCI_DEVICES", str(tmp_path))
    assert nvml.num_nvidia_cards() == 1
    monkeypatch.setattr(nvml, "_PCI_DEVICES", str(tmp_path / "absent"))
    assert nvml.num_nvidia_cards() == 0
