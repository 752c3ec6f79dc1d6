"""A CPU build of torch, patched to look like a CUDA build, that records its calls to the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.harness import REPOSITORY

# Each call is recorded with the value of CUDA_VISIBLE_DEVICES at that time. The fake driver reports one GPU.
PREAMBLE = """
import json, os, sys, types
import torch
from trainers.machine import nvml

calls = []

def note(owner, name, answer):
    def noted(*arguments, **options):
        calls.append([name, os.environ.get("CUDA_VISIBLE_DEVICES")])
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
torch.backends.cuda.is_built = lambda: True
"""


def calls_of(script: str, *arguments: str, **variables: str) -> list[tuple[str, str | None]]:
    """Return the calls that a script makes on such a build, each with CUDA_VISIBLE_DEVICES at that time."""
    program = f"{PREAMBLE}\n{script}\nprint(json.dumps(calls), flush=True)\nos._exit(0)\n"
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    told = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return [(name, visible) for name, visible in json.loads(told.stdout.splitlines()[-1])]
