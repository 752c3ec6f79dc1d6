"""The devices of the tests of this folder, and the processes on each GPU as reported by the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from trainers.machine import nvml

# Run in a subprocess: this opens a CUDA context, and the test process must not be on any GPU.
UUIDS = """
import torch
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(index).uuid)
"""
# Opens a CUDA context, reports that, and holds it until it reads a line.
HOLDER = "import torch; held = torch.ones(1, device='cuda'); print('there', flush=True); input()"
# The driver still reports a terminated process while its memory is freed.
TEARDOWN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """GPUs, or CPU ranks instead: then no process is on any GPU, and the rest is the same.

    Attributes:
        device: the device in the configuration of a run.
        num: number of GPUs that may be used, or of CPU ranks that replace them.
        uuids: of the GPUs, in CUDA's order: rank 0 of a manually started run is on the first. NVML counts all
            GPUs of the machine, regardless of CUDA_VISIBLE_DEVICES.
    """

    device: str
    num: int
    uuids: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def is_fast(self) -> bool:
        """True for real GPUs. Otherwise tests use the smallest models and few steps."""
        return self.is_gpu and not os.environ.get("PAPER_GPU")

    def users(self, uuid: str | None = None) -> set[int]:
        """Return the PIDs of the processes that compute on a GPU, or on any of the usable ones."""
        found: set[int] = set()
        for each in self.uuids if uuid is None else [uuid]:
            handle = nvml.gpu_handle(each)
            users = nvml.gpu_processes(handle) if handle is not None else None
            assert users is not None, f"the driver does not say who is on {each}"
            found |= {user.pid for user in users if not user.draws}
        return found

    def gpus_of(self, pid: int) -> set[str]:
        """Return the UUIDs of the GPUs that a process is on."""
        return {uuid for uuid in self.uuids if pid in self.users(uuid)}

    def index_of(self, rank: int) -> int | None:
        """Return the machine's index of the GPU, or the number of the CPU rank, of a manual run's rank."""
        handle = nvml.gpu_handle(self.uuids[rank]) if self.is_gpu else None
        return rank if handle is None else nvml.gpu_index(handle)

    def wait_until_nobody_of(self, pids: Collection[int]) -> None:
        """Wait until the driver reports none of these processes."""
        gone = f"processes {sorted(pids)} being off the GPU"
        wait_until(gone, lambda: not self.users() & set(pids), TEARDOWN_S)


def gpus() -> Place:
    """Return the GPUs that torch sees in a subprocess, in its order."""
    told = subprocess.run(
        [sys.executable, "-c", UUIDS], stdout=subprocess.PIPE, text=True, timeout=ANSWER_TIMEOUT_S, check=True
    )
    uuids = tuple(nvml.named(uuid) for uuid in told.stdout.split())
    return Place(device="cuda", num=len(uuids), uuids=uuids)


@contextmanager
def somebody_on(uuid: str) -> Iterator[int]:
    """Let an unrelated program hold a GPU. Yield its PID."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate(timeout=ANSWER_TIMEOUT_S)


def names_processes(place: Place) -> bool:
    """True if the driver reports a process that is known to exist. In some containers it does not."""
    first = place.uuids[0]
    with somebody_on(first) as pid:
        try:
            wait_until("the driver naming a process of ours", lambda: pid in place.users(first), 10.0)
        except AssertionError:
            return False
    place.wait_until_nobody_of([pid])
    return True
