"""Memory that is freed in one step is reused in the next."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys

import pytest

from trainers.parallel import devices

# A step with activations of 8 MiB, as in a small transformer. The first steps only allocate memory.
STEPS = """
import resource, statistics, sys, torch
from torch import nn
from trainers.parallel import devices
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    devices.keep_what_is_freed()
pairs = [(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)]
network = nn.Sequential(*[layer for pair in pairs for layer in pair])
inputs = torch.randn(4096, 128)
def step():
    network(inputs).sum().backward()
    network.zero_grad()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for _ in range(15):
    before = faults()
    step()
    counts.append(faults() - before)
print(statistics.median(counts[4:]))
"""


def faults_a_step(how: str) -> float:
    """Return the median number of page faults per step."""
    # glibc's initial threshold. glibc raises it dynamically, depending on the sizes freed before.
    fixed = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)} if how == "give back" else {}
    ended = subprocess.run(
        [sys.executable, "-c", STEPS, how],
        env=os.environ | fixed,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return float(ended.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")
@pytest.mark.slow
def test_a_step_takes_no_memory_from_the_system_again() -> None:
    pages_of_one_activation = 8 * 2**20 / resource.getpagesize()
    assert faults_a_step("keep") < 0.1 * pages_of_one_activation
    assert faults_a_step("give back") > pages_of_one_activation  # otherwise there is nothing to save


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake C library without `mallopt`."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    devices.keep_what_is_freed()
