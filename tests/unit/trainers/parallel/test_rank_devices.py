"""Tests of how a rank chooses its device, with simulated NVML and CUDA."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.fake_gpus import FakeGpu, FakeNvml
from trainers.machine import cuda_environment, nvml
from trainers.parallel import devices, process_group, usable_gpus

FIRST = FakeGpu(uuid="GPU-aaaa1111-2222")
SECOND = FakeGpu(uuid="GPU-bbbb1111-2222")
OLD = FakeGpu(uuid="GPU-cccc1111-2222", name="NVIDIA Old", capability=(3, 5))
ARCHITECTURES = ["sm_75", "sm_80", "sm_90", "sm_120", "compute_120"]
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver "
    "by downloading and installing a new version"
)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables after each test."""
    names = (cuda_environment.VISIBLE, cuda_environment.ORDER, cuda_environment.OBSTACLE)
    for name in (*names, cuda_environment.SHARE_ONE_GPU):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


class FakeCuda:
    """A torch built for CUDA whose GPUs are those of the simulated driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu, error: str = "") -> None:
        self.gpus, self.error = gpus, error
        self.num_starts = 0
        self.taken: list[torch.device] = []
        monkeypatch.setattr(nvml, "_nvml", lambda: FakeNvml(gpus))
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        for name in ("init", "device_count", "set_device", "get_device_properties", "get_arch_list"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def init(self) -> None:
        self.num_starts += 1
        if self.error:
            raise RuntimeError(self.error)

    def device_count(self) -> int:
        return 0 if self.error else len(nvml.visible_gpus())

    def set_device(self, device: torch.device) -> None:
        self.taken.append(device)

    def get_device_properties(self, device: torch.device | int) -> Any:
        index = device if isinstance(device, int) else device.index
        gpu = self.gpus[index]
        return SimpleNamespace(
            name=gpu.name,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            uuid=gpu.uuid.removeprefix("GPU-"),  # the format that torch prints
        )

    def get_arch_list(self) -> list[str]:
        return ARCHITECTURES


def test_each_rank_has_a_gpu_of_its_own_and_they_talk_over_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, FIRST, SECOND)
    assert devices.choose("auto", 1, 2) == devices.DeviceChoice(
        device=torch.device("cuda", 1), backend="nccl"
    )
    with pytest.raises(
        ValueError, match=r"nproc_per_node is 3, but torch sees 2 GPU.*at most 2, or device cpu"
    ):
        devices.choose("auto", 0, 3)
    assert cuda_environment.VISIBLE not in os.environ


def test_a_rank_on_the_cpu_hides_the_gpus_and_calls_nothing_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, FIRST, SECOND)
    assert devices.choose("cpu", 1, 2) == devices.DeviceChoice(device=torch.device("cpu"))
    assert os.environ[cuda_environment.VISIBLE] == "" and cuda.num_starts == 0
    assert devices.choose("auto", 1, 2).device.type == "cpu", "what the page hides is not looked for"
    assert cuda.num_starts == 0
    with pytest.raises(ValueError, match=r"torch sees 0 GPU.*choose device cpu"):
        devices.choose("cuda", 0, 1)


def test_a_driver_that_is_too_old_means_cpu_ranks_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeCuda(monkeypatch, FIRST, error=TOO_OLD)
    choice = devices.choose("auto", 0, 1)
    assert choice.device.type == "cpu" and choice.obstacle is not None
    assert "driver (535.183) is too old" in choice.obstacle.reason and "CUDA 13.0" in choice.obstacle.reason
    assert "driver 580 or newer" in choice.obstacle.remedy
    assert os.environ[cuda_environment.VISIBLE] == ""
    monkeypatch.delenv(cuda_environment.VISIBLE)
    with pytest.raises(
        ValueError, match=r"device is cuda, but no GPU can be used.*too old.*580 or newer.*device cpu"
    ):
        devices.choose("cuda", 0, 1)


@pytest.mark.parametrize(
    ("error", "reason", "remedy"),
    [
        ("cudaGetDeviceCount() Error 802: system not yet initialized", "NVSwitch", "nvidia-fabricmanager"),
        ("Found no NVIDIA driver on your system.", "libcuda", "NVIDIA_DRIVER_CAPABILITIES"),
        ("CUDA error: unknown error", "does not start: CUDA error: unknown error", "Restart the machine"),
    ],
)
def test_what_cuda_says_at_its_start_is_explained(error: str, reason: str, remedy: str) -> None:
    found = devices.describe_cuda_error(error, "12.8", None)
    assert reason in found.reason and remedy in found.remedy


def test_the_torch_of_this_environment_says_itself_that_it_is_for_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if torch.backends.cuda.is_built():
        pytest.skip("this torch was built for GPUs")
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeNvml([FIRST]))
    found = devices.choose("auto", 0, 1).obstacle
    assert found is not None and "built for CPUs only" in found.reason
    assert "./run.sh --torch-build auto" in found.remedy
    assert torch.cuda.device_count() == 0
    with pytest.raises(AssertionError, match="not compiled"):
        torch.cuda.init()  # the error that would be raised if the build were not checked first


def test_beside_such_a_card_the_others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, FIRST, OLD)
    assert devices.choose("auto", 0, 1).device == torch.device("cuda", 0)
    assert devices.choose("auto", 0, 2).device.type == "cpu", "two ranks would need it"
    monkeypatch.delenv(cuda_environment.VISIBLE)
    devices.set_gpu(torch.device("cuda", 0))
    with pytest.raises(ValueError, match="no kernels for NVIDIA Old"):
        devices.set_gpu(torch.device("cuda", 1))


@pytest.mark.parametrize(
    ("capability", "built_for", "is_covered"),
    [
        ((8, 9), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["compute_80"], True),
        ((12, 1), ["sm_120"], True),
        ((9, 1), ["sm_90a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["compute_90a"], False),
        ((9, 4), ["gfx942"], True),
    ],
)
def test_which_cards_a_build_covers(
    capability: tuple[int, int], built_for: list[str], is_covered: bool
) -> None:
    assert devices.is_covered(capability, built_for) == is_covered


@pytest.mark.parametrize(
    "visible", [None, "0", "GPU-aaaa1111-2222,GPU-bbbb1111-2222", "GPU-aaaa,GPU-bbbb", "MIG-7,MIG-8"]
)
def test_a_gpu_that_is_the_one_granted_is_held(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    cuda = FakeCuda(monkeypatch, FIRST, SECOND)
    if visible is not None:
        monkeypatch.setenv(cuda_environment.VISIBLE, visible)
    devices.set_gpu(torch.device("cuda", 1))
    assert cuda.taken == [torch.device("cuda", 1)]


def test_another_gpu_than_the_one_granted_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver was initialized before the run was known, so its first GPU is that of the machine."""
    FakeCuda(monkeypatch, FIRST, SECOND)
    monkeypatch.setenv(cuda_environment.VISIBLE, SECOND.uuid)
    words = f"assigned {SECOND.uuid}, but CUDA opened {FIRST.uuid}.*--no-standby"
    with pytest.raises(ValueError, match=words):
        devices.set_gpu(torch.device("cuda", 0))
    divided = replace(SECOND, is_divided=True)
    FakeCuda(monkeypatch, replace(FIRST, uuid="MIG-7"), divided)
    devices.set_gpu(torch.device("cuda", 0))  # a part of the GPU that was granted


def test_the_page_is_told_the_gpus_that_can_be_used_as_cuda_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeCuda(monkeypatch, SECOND, OLD, FIRST)
    found = usable_gpus.describe()
    assert found["uuids"] == [SECOND.uuid, FIRST.uuid] and found["obstacle"] is None
    assert found["left_out"] == ["NVIDIA Old (compute capability 3.5)"]
    FakeCuda(monkeypatch, FIRST, error=TOO_OLD)
    found = usable_gpus.describe()
    assert found["uuids"] == [] and "too old" in found["obstacle"]["reason"]


@pytest.mark.parametrize(("given", "cores"), [("", 4), ("3", 3), ("64", 4), ("0", 4), ("many", 4)])
def test_ranks_use_the_cores_that_slurm_gave_their_job(
    monkeypatch: pytest.MonkeyPatch, given: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", given)
    assert process_group.num_cores_to_use() == cores
