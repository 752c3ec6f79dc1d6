"""NVML's and torch's view of the simulated machine: profiles, MIG, drivers, processes of other users."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paper_gpu import environment
from tests.paper_gpu.conftest import OnGpus

PROFILES = {
    "T4": ("Tesla T4 (paper)", (7, 5), 15360),
    "RTX3060": ("NVIDIA GeForce RTX 3060 (paper)", (8, 6), 12288),
    "A100": ("NVIDIA A100-SXM4-80GB (paper)", (8, 0), 81920),
    "H100": ("NVIDIA H100 80GB HBM3 (paper)", (9, 0), 81559),
}
MIB = 2**20
BY_BOTH = """
import json, torch
from trainers.machine import hardware
found = []
for gpu in hardware.visible_gpus():
    reading = hardware.read_gpu(gpu.handle)
    capability = hardware.compute_capability(gpu.handle)
    found.append([reading.name, capability, reading.memory_total_bytes, gpu.uuid])
torchs = []
for index in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(index)
    torchs.append([p.name, [p.major, p.minor], p.total_memory, f"GPU-{p.uuid}"])
print(json.dumps([found, torchs]))
"""
VISIBLE = """
import json, torch
count = torch.cuda.device_count()
print(json.dumps([str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]))
"""
READINGS = """
import json
from trainers.machine import hardware
handle = hardware.gpu_handles()[0]
processes = hardware.gpu_processes(handle)
print(json.dumps({
    "reading": hardware.read_gpu(handle).__dict__, "held": hardware.memory_held_bytes(handle),
    "processes": None if processes is None else [[p.pid, p.memory_used_bytes, p.draws] for p in processes],
}))
"""


@pytest.mark.parametrize("profile", PROFILES)
def test_nvml_and_torch_agree_on_a_profile_and_its_name_says_paper(on_gpus: OnGpus, profile: str) -> None:
    by_nvml, by_torch = on_gpus(f"{profile}x2", BY_BOTH)
    name, capability, memory_mib = PROFILES[profile]
    assert [each[:3] for each in by_nvml] == [[name, list(capability), memory_mib * MIB]] * 2
    assert by_nvml == by_torch
    assert by_nvml[0][3] != by_nvml[1][3]


def test_an_unknown_profile_names_those_there_are(build: Path, state: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.cuda.device_count()"],
        env=os.environ | environment("V100", build, state),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "PAPER_GPU names the profile 'V100'; there are T4, RTX3060, A100, H100" in done.stderr


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1,0", [1, 0]),
        ("2,9,0", [2]),
        ("0,0", []),
        ("", []),
        ("GPU-70617065-7200-0000-0000-000000000002", [2]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    on_gpus: OnGpus, visible: str, expected: list[int]
) -> None:
    found = on_gpus("T4x3", VISIBLE, CUDA_VISIBLE_DEVICES=visible)
    assert [int(uuid[-2:], 16) for uuid in found] == expected


def test_a_machine_without_gpus_has_no_driver(on_gpus: OnGpus) -> None:
    code = """
import json, torch
from trainers.machine import hardware
print(json.dumps([torch.cuda.is_available(), hardware.nvml_problem()]))
"""
    assert on_gpus("", code) == [False, "no_driver"]


# ---- drivers


def test_an_old_driver_is_too_old_for_torch_and_lacks_the_newest_functions_of_nvml(on_gpus: OnGpus) -> None:
    code = """
import json, warnings, torch, pynvml
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    available = torch.cuda.is_available()
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
def named(question, *arguments, **more):
    try:
        question(*arguments, **more)
    except Exception as error:
        return type(error).__name__
versions = [pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()]
print(json.dumps([
    available, any("too old" in str(each.message) for each in caught), versions,
    named(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
    named(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2),
    named(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle),
]))
"""
    assert on_gpus("T4", code, driver=470) == [
        False, True, ["470.256.02", 11040],
        "NVMLLibraryMismatchError", "NVMLError_FunctionNotFound", None,
    ]  # fmt: skip
    assert on_gpus("T4", code, driver=580)[3:] == [None, None, None]


@pytest.mark.parametrize(("driver", "is_enough"), [(550, False), (570, False), (580, True)])
def test_torch_can_be_used_from_driver_580_on(on_gpus: OnGpus, driver: int, is_enough: bool) -> None:
    code = "import json, torch; print(json.dumps(torch.cuda.is_available()))"
    assert on_gpus("T4", code, driver=driver) is is_enough


# ---- processes


def occupy(state: Path, gpu: int, pid: int, **more: object) -> Path:
    import paper_gpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPER_STATE", str(state))
        return paper_gpu.occupy(gpu, pid, **more)


def test_another_process_holds_memory_and_computes_until_it_ends(on_gpus: OnGpus, state: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        occupy(state, 0, other.pid, memory_bytes=3000 * MIB, utilization_percent=80)
        found = on_gpus("T4", READINGS)
        assert found["processes"] == [[other.pid, 3000 * MIB, False]]
        assert found["held"] == 3000 * MIB
        assert found["reading"]["utilization_percent"] == 80
        assert found["reading"]["memory_used_bytes"] == 3500 * MIB  # including the driver's reserve
        free = on_gpus("T4", "import torch; print(torch.cuda.mem_get_info()[0])")
        assert free == (15360 - 3000 - 400) * MIB  # a context takes 400 MiB
        other.kill()
    found = on_gpus("T4", READINGS)
    assert (found["processes"], found["held"], found["reading"]["utilization_percent"]) == ([], 0, 0)


def test_processes_that_draw_and_those_of_another_container_are_listed(on_gpus: OnGpus, state: Path) -> None:
    nobody = 2**22 + 5  # above the largest PID of Linux
    occupy(state, 0, os.getpid(), memory_bytes=MIB, draws=True)
    occupy(state, 0, nobody, memory_bytes=2 * MIB, is_elsewhere=True)
    assert on_gpus("T4", READINGS)["processes"] == [
        [nobody, 2 * MIB, False],
        [os.getpid(), MIB, True],
    ]


def test_a_process_is_on_a_gpu_from_its_first_context_on(on_gpus: OnGpus) -> None:
    code = """
import json, os, torch
from trainers.machine import hardware
def who():
    return [[p.pid == os.getpid() for p in hardware.gpu_processes(h)] for h in hardware.gpu_handles()]
before = who(), torch.cuda.device_count(), torch.cuda.get_device_name(1)
x = torch.ones(2**20, device="cuda:1")
held = hardware.gpu_processes(hardware.gpu_handles()[1])[0].memory_used_bytes
print(json.dumps([before[0], who(), held]))
"""
    before, after, held = on_gpus("T4x2", code)
    assert before == [[], []]
    assert after == [[], [True]]
    assert held == (400 + 20) * MIB  # torch's allocator reserves 20 MiB for a tensor of 4 MiB


def test_a_gpu_is_utilized_while_its_streams_execute(on_gpus: OnGpus) -> None:
    code = """
import json, torch
from trainers.machine import hardware
torch.ones(1, device="cuda")
torch.cuda.synchronize()
found = []
for seconds in (0, 1):
    hardware.read_gpu(hardware.gpu_handles()[0])
    torch.cuda._sleep(seconds * 10**9)
    torch.cuda.synchronize()
    found.append([hardware.read_gpu(handle).utilization_percent for handle in hardware.gpu_handles()])
print(json.dumps(found))
"""
    idle, busy = on_gpus("T4x2", code)
    assert idle[1] == busy[1] == 0
    assert idle[0] < 50 < busy[0]


# ---- MIG

PARTS = """
import json, pynvml, torch
from trainers.machine import hardware
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
parts = []
for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
    try:
        part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
    except pynvml.NVMLError_NotFound:
        break
    owner = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))
    parts.append([pynvml.nvmlDeviceGetUUID(part), pynvml.nvmlDeviceGetMemoryInfo(part).total, owner])
x = torch.ones(1, device="cuda")
seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([hardware.is_divided(gpu), parts, hardware.read_gpu(gpu).utilization_percent,
                  [[p.name, p.total_memory] for p in seen]]))
"""


def test_a_divided_gpu_has_instances_and_a_process_sees_one(on_gpus: OnGpus) -> None:
    gpus = "A100/3g.40gb+1g.10gb"
    is_divided, parts, utilization, seen = on_gpus(gpus, PARTS)
    assert is_divided and utilization is None
    assert [memory for _, memory, _ in parts] == [40192 * MIB, 9728 * MIB]
    assert {owner for *_, owner in parts} == {"GPU-70617065-7200-0000-0000-000000000000"}
    assert seen == [["NVIDIA A100-SXM4-80GB (paper) MIG 3g.40gb", 40192 * MIB]]
    small = parts[1][0]
    assert small.startswith("MIG-")
    both = f"{small},{parts[0][0]}"
    assert on_gpus(gpus, PARTS, CUDA_VISIBLE_DEVICES=both)[3] == [
        ["NVIDIA A100-SXM4-80GB (paper) MIG 1g.10gb", 9728 * MIB]
    ]
