"""Tests of which events of torch's profiler count as collectives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from trainers.recording import profiled
from trainers.recording.profiled import CollectiveProfile

KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ANNOTATION = "nccl:all_reduce"
ids = itertools.count()


def event(name: str, start_us: float, end_us: float, device: DeviceType, **more: Any) -> FunctionEvent:
    return FunctionEvent(
        id=next(ids), name=name, thread=1, start_us=start_us, end_us=end_us, device_type=device, **more
    )


def two_all_reduces_on_a_gpu() -> list[FunctionEvent]:
    """Return a trace as Kineto writes it: for each all-reduce the call, two annotations and the kernel."""
    found = []
    for began_us in (100.0, 300.0):
        found += [
            event("c10d::allreduce_", began_us, began_us + 20, DeviceType.CPU),
            event(ANNOTATION, began_us + 5, began_us + 15, DeviceType.CPU, is_user_annotation=True),
            event(ANNOTATION, began_us + 40, began_us + 90, DeviceType.CUDA, is_user_annotation=True),
            event(KERNEL, began_us + 40, began_us + 90, DeviceType.CUDA),
            event("ampere_sgemm_32x32_tn", began_us + 95, began_us + 99, DeviceType.CUDA),
        ]
    return found


def test_each_collective_on_a_gpu_counts_once_as_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Profiler:
        def __init__(self, **_: Any) -> None:
            self.anchors: list[FunctionEvent] = []

        def start(self) -> None: ...

        def stop(self) -> None: ...

        def events(self) -> list[FunctionEvent]:
            names = (profiled._ANCHOR.format(number) for number in range(profiled.NUM_ANCHORS))
            return [*(event(name, 1, 2, DeviceType.CPU) for name in names), *two_all_reduces_on_a_gpu()]

    monkeypatch.setattr(profiled, "profile", Profiler)
    recorded = CollectiveProfile(torch.device("cuda"))
    recorded.begin()
    found = recorded.end()
    assert [each.name for each in found] == [KERNEL[: profiled._LONGEST_NAME]] * 2
    assert found[1].began_ns - found[0].began_ns == 200_000
    assert all(each.is_all_reduce and each.algorithm == "ring" for each in found)
    assert [each.ended_ns - each.began_ns for each in found] == [50_000, 50_000]
