"""Tests of devices: unavailable readings are None, and visible GPUs follow CUDA's rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.fake_gpus import FakeGpu, FakeNvml, MismatchError, OldNvml
from trainers.engines.local.engine import LocalEngine
from trainers.machine import cuda_environment, facilities, hardware, host


def use(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: FakeNvml(gpus))


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
        ("0,1", 2),
        ("", 0),
        ("-1", 0),
        ("3", 1),
        ("0,1,2,3,4,5,6,7,8,9", 8),
        ("0,-1,1", 1),
        ("0,,1", 1),
        ("9,0", 0),
        ("1,1", 0),
        ("GPU-a,GPU-c000", 2),
        ("GPU-", 0),
        ("nonsense", 0),
    ],
)
def test_gpus_are_counted_as_cuda_reads_their_names(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: int
) -> None:
    use(monkeypatch, *box(8))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.num_gpus() == expected


@pytest.mark.parametrize(
    ("order", "visible", "names", "is_unclear"),
    [
        (None, "0", ("Fast", "Slow"), True),
        ("FASTEST_FIRST", "1", ("Fast", "Slow"), True),
        ("PCI_BUS_ID", "1", ("Fast", "Slow"), False),
        (None, "1", ("Fast", "Fast"), False),
        (None, None, ("Fast", "Slow"), False),
        (None, "GPU-a000", ("Fast", "Slow"), False),
    ],
)
def test_indices_of_cudas_own_order_are_unclear_among_different_gpus(
    monkeypatch: pytest.MonkeyPatch,
    order: str | None,
    visible: str | None,
    names: tuple[str, ...],
    is_unclear: bool,
) -> None:
    use(monkeypatch, *(replace(gpu, name=name) for gpu, name in zip(box(2), names, strict=True)))
    for variable, value in (("CUDA_DEVICE_ORDER", order), ("CUDA_VISIBLE_DEVICES", visible)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert hardware.names_are_unclear() == is_unclear


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
    found = hardware.visible_gpus()
    assert [(gpu.index, gpu.uuid, gpu.is_part) for gpu in found] == expected
    for gpu in found:
        if gpu.uuid == "MIG-1":
            assert [process.pid for process in hardware.gpu_processes(gpu.handle) or ()] == [71]


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "most", "memory"),
    [
        ((DIVIDED,), 2, 1, 5 * 10**9),
        ((replace(DIVIDED, instances=()),), 1, 1, None),
        ((WHOLE, DIVIDED), 3, 1, 5 * 10**9),
        ((WHOLE, replace(WHOLE, uuid="GPU-2222"), DIVIDED), 4, 2, 5 * 10**9),
        ((WHOLE, replace(WHOLE, uuid="GPU-2222", capability=(7, 5))), 2, None, 40 * 10**9),
    ],
    ids=["two instances", "instances not listed", "one whole", "two whole", "none divided"],
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
    assert (offered.num_gpus, offered.most_gpus_per_run) == (num_gpus, most)
    assert offered.gpu_memory_bytes == memory
    assert offered.gpu_capability == min(gpu.capability for gpu in gpus)


def test_a_driver_before_510_names_who_is_on_a_gpu_and_what_it_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(uuid="GPU-a", pids=(7,))
    monkeypatch.setattr(hardware, "_nvml", lambda: OldNvml([gpu]))
    monkeypatch.setattr(hardware, "_nvml_and_problem", lambda: (None, None, ""))
    assert [process.pid for process in hardware.gpu_processes(gpu) or ()] == [7]
    assert hardware.telemetry_problem() == (
        "GPU telemetry is not available: utilization (Not Supported) of GPU 0; memory (Not Supported) of GPU "
        "0. The driver is 470.256.02."
    )


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

    monkeypatch.setattr(hardware, "_nvml", Broken)
    assert hardware.visible_gpus() == [] and hardware.all_gpus() == {}
    assert hardware.read_gpu(0) == host.Reading()
    assert hardware.gpu_processes(0) is None and hardware.memory_held_bytes(0) is None
    assert hardware.compute_capability(0) is None and hardware.gpu_index(0) is None
    assert hardware.driver_versions() == (None, None) and not hardware.is_divided(0)
    assert hardware.gpu_divided_into("MIG-1") is None


@pytest.mark.parametrize(
    ("precision", "capability", "reason", "remedy"),
    [
        ("bf16", (7, 5), "Tesla T4 (compute capability 7.5) has no bf16 arithmetic", "Choose fp16"),
        ("tf32", (7, 5), "has no TF32", "Choose fp16"),
        ("bf16", (6, 1), "has no bf16", "Choose fp32"),
        ("bf16", (8, 0), None, None),
        ("tf32", (12, 0), None, None),
        ("fp16", (7, 5), None, None),
        ("fp32", (5, 0), None, None),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_said_with_the_one_it_has(
    precision: str, capability: tuple[int, int], reason: str | None, remedy: str | None
) -> None:
    found = hardware.precision_obstacle(precision, "Tesla T4", capability)
    if reason is None or remedy is None:
        assert found is None
    else:
        assert found is not None and reason in found.reason and remedy in found.remedy


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 fsrm\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512f amx_bf16 amx_tile\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_vnni\n", False),
        ("processor\t: 0\nvendor_id\t: bf16\n", None),
        (None, None),
    ],
)
def test_bf16_of_a_cpu_is_read_from_its_flags(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, expected: bool | None
) -> None:
    monkeypatch.setattr(facilities, "read", lambda _path: listed)
    assert host.has_bf16.__wrapped__() is expected
