"""Devices: a reading that cannot be had is None, and a GPU that is not there is said in words."""

from __future__ import annotations

import os

import pytest
import torch

from trainers import distributed
from trainers.contract import hardware


def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: None)
    assert hardware.num_gpus() == 0
    assert hardware.gpu_handles() == []
    assert hardware.gpu_handle("GPU-1") is None


def test_without_psutil_readings_are_none_and_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_psutil", lambda: None)
    reading = hardware.ProcessReader(1).read()
    assert reading.name and reading.utilization_percent is None and reading.memory_used_bytes is None


def test_own_process_is_read_on_the_cpu() -> None:
    reader = hardware.ProcessReader(1)
    sum(number * number for number in range(2_000_000))
    reading = reader.read()
    assert reading.utilization_percent is not None and 0 < reading.utilization_percent <= 100
    assert reading.memory_used_bytes is not None and reading.memory_used_bytes > 1_000_000
    assert reading.memory_total_bytes is not None and reading.memory_total_bytes > reading.memory_used_bytes
    assert reading.temperature_celsius is None and reading.power_watts is None


class FakeNvml:
    """A driver of which some questions fail, the way NVML's do."""

    NVMLError = RuntimeError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, count: int) -> None:
        self.count = count

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's names
        return self.count

    def nvmlDeviceGetName(self, handle: object) -> bytes:  # noqa: N802
        return b"NVIDIA Test"

    def _fail(self, *_: object) -> None:
        raise RuntimeError("Not Supported")

    nvmlDeviceGetUtilizationRates = nvmlDeviceGetMemoryInfo = nvmlDeviceGetTemperature = _fail  # noqa: N815

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:  # noqa: N802
        return 61_500


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, 8), ("0,1", 2), ("", 0), ("-1", 0), ("3", 1), ("0,1,2,3,4,5,6,7,8,9", 8)]
)
def test_only_visible_gpus_are_counted(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: int
) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: FakeNvml(8))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.num_gpus() == expected


def test_question_a_gpu_cannot_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_nvml", lambda: FakeNvml(1))
    reading = hardware.read_gpu(object())
    assert reading == hardware.Reading(name="NVIDIA Test", power_watts=61.5)


def test_more_ranks_than_gpus_is_refused_naming_field_value_and_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ValueError, match=r"nproc_per_node is 3, but torch sees 2 GPU.*at most 2, or device cpu"
    ):
        distributed.choose_device("auto", 0, 3)
    assert distributed.choose_device("auto", 1, 2) == torch.device("cuda", 1)
    assert distributed.choose_device("cpu", 1, 2) == torch.device("cpu")


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert distributed.choose_device("auto", 0, 4) == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees 0 GPU"):
        distributed.choose_device("cuda", 0, 1)


def test_cores_counted_are_those_this_process_may_use() -> None:
    assert hardware.num_cores() == len(os.sched_getaffinity(0))
