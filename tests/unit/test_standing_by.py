"""A rank that waits for a run calls nothing of CUDA, told by torch's own Python on a made-up CUDA build."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.harness import REPOSITORY
from trainers.contract import gpu_signs, hardware

# Torch for the CPU, told that it was built for CUDA: what it would call of the driver is noted, and answered.
ON_A_FAKE_CUDA_BUILD = """
import json, sys, types
import torch
from trainers import standing_by
from trainers.contract import gpu_signs

calls = []

def note(owner, name, answer):
    def noted(*arguments, **options):
        calls.append(name)
        return answer(*arguments, **options)
    setattr(owner, name, noted)

note(torch.Tensor, "backward", torch.Tensor.backward)
note(torch.optim.AdamW, "step", torch.optim.AdamW.step)
note(torch._C, "_cuda_getDeviceCount", lambda: 1)
note(torch._C, "_cuda_init", lambda: None)
note(torch._C, "_cuda_getCurrentRawStream", lambda *_: 0)
note(torch._C, "_accelerator_getDeviceIndex", lambda *_: 0)
note(torch._C, "_accelerator_getStream", lambda *_: types.SimpleNamespace(is_capturing=lambda: False))
torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")
torch.cuda._is_compiled = lambda: True
gpu_signs.may_have_gpu = lambda: sys.argv[1] == "a GPU"
standing_by.get_ready()
print(json.dumps([*calls, *(["initialised"] if torch.cuda.is_initialized() else [])]))
"""


def called_beside(machine: str) -> list[str]:
    command = [sys.executable, "-c", ON_A_FAKE_CUDA_BUILD, machine]
    told = subprocess.run(command, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, check=True)
    found: list[str] = json.loads(told.stdout.splitlines()[-1])
    return found


def test_beside_a_gpu_a_waiting_rank_only_imports() -> None:
    assert called_beside("a GPU") == []


def test_a_step_on_the_cpu_would_open_the_gpu_hence_none_is_taken_beside_one() -> None:
    """If this fails, torch has changed: then a waiting rank may take its step everywhere."""
    called = called_beside("no GPU")
    assert called[:2] == ["backward", "step"]
    assert "_accelerator_getStream" in called, "what AdamW asks of the GPU, with all its tensors on the CPU"


def test_signs_of_a_gpu_are_its_driver_its_files_and_the_bus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(gpu_signs, "_DEVICE_FILES", ())
    monkeypatch.setattr(hardware, "num_nvidia_cards", lambda: 0)
    monkeypatch.setattr(hardware, "num_gpus", lambda: 0)
    assert not gpu_signs.may_have_gpu()
    monkeypatch.setattr(gpu_signs, "_DEVICE_FILES", (REPOSITORY,))
    assert gpu_signs.may_have_gpu(), "a driver whose card is on no bus, as in Linux within Windows"
    monkeypatch.setattr(gpu_signs, "_DEVICE_FILES", ())
    monkeypatch.setattr(hardware, "num_nvidia_cards", lambda: 1)
    assert gpu_signs.may_have_gpu()
