"""Devices: a reading that cannot be had is None, and which GPUs may be seen is told as CUDA tells it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.unit.fake_gpus import FakeGpu, FakeNvml
from trainers.machine import cuda_environment, hardware, processor


def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: None)
    assert hardware.num_gpus() == 0
    assert hardware.gpu_handles() == []
    assert hardware.gpu_handle("GPU-1") is None


def test_withoutfind_psutil_readings_are_none_and_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "find_psutil", lambda: None)
    reading = processor.ProcessReader(1).read()
    assert reading.name and reading.utilization_percent is None and reading.memory_used_bytes is None


def test_own_process_is_read_on_the_cpu() -> None:
    reader = processor.ProcessReader(1)
    sum(number * number for number in range(2_000_000))
    reading = reader.read()
    assert reading.utilization_percent is not None and 0 < reading.utilization_percent <= 100
    assert reading.memory_used_bytes is not None and reading.memory_used_bytes > 1_000_000
    assert reading.memory_total_bytes is not None and reading.memory_total_bytes > reading.memory_used_bytes
    assert reading.temperature_celsius is None and reading.power_watts is None


def use(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: FakeNvml(gpus))


def box(num_gpus: int) -> list[FakeGpu]:
    return [FakeGpu(uuid=f"GPU-{'abcdefgh'[index]}000") for index in range(num_gpus)]


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test makes of them, the variables are as they were afterwards."""
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
    assert hardware.num_gpus() == len(hardware.gpu_handles()) == expected


def test_handles_are_those_of_the_visible_gpus_not_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = box(3)
    use(monkeypatch, *gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert hardware.gpu_handles() == [gpus[1], gpus[2]]


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


def test_question_a_gpu_cannot_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, *box(1))
    assert hardware.read_gpu(box(1)[0]) == processor.Reading(name="NVIDIA Fake 80GB")


def test_cores_counted_are_those_this_process_may_use() -> None:
    assert processor.num_cores() == len(os.sched_getaffinity(0))
