"""Where the tests of this folder run, and who is on which GPU as the driver tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from trainers.machine import hardware

# Asked in a process of its own: to tell, torch opens CUDA, and whoever runs the tests shall be on no GPU.
UUIDS = """
import torch
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(index).uuid)
"""
# Opens a context as any program does, says so, and holds it until it is told to go.
HOLDER = "import torch; held = torch.ones(1, device='cuda'); print('there', flush=True); input()"
# A process of which the driver still knows has not ended: its memory is given back bit by bit.
TEARDOWN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """GPUs, or CPU ranks in their place: then nobody is on any GPU, and the rest is the same.

    Attributes:
        device: what the configuration of a run says.
        num: GPUs that may be used, or how many CPU ranks stand for them.
        uuids: of the GPUs, as CUDA counts them: rank 0 of a run by hand is on the first. NVML counts those of
            the machine, whatever CUDA_VISIBLE_DEVICES leaves of them and in which order.
    """

    device: str
    num: int
    uuids: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def is_fast(self) -> bool:
        """True for GPUs that are not simulated: elsewhere the smallest models and few steps have to do."""
        return self.is_gpu and not os.environ.get("PAPER_GPU")

    def users(self, uuid: str | None = None) -> set[int]:
        """Return who computes on a GPU, or on any of those that may be used."""
        found: set[int] = set()
        for each in self.uuids if uuid is None else [uuid]:
            handle = hardware.gpu_handle(each)
            users = hardware.gpu_processes(handle) if handle is not None else None
            assert users is not None, f"the driver does not say who is on {each}"
            found |= {user.pid for user in users if not user.draws}
        return found

    def gpus_of(self, pid: int) -> set[str]:
        """Return the GPUs that a process is on, by their UUIDs."""
        return {uuid for uuid in self.uuids if pid in self.users(uuid)}

    def index_of(self, rank: int) -> int | None:
        """Return which of the machine's GPUs, or which CPU rank, a rank of a run by hand is on."""
        handle = hardware.gpu_handle(self.uuids[rank]) if self.is_gpu else None
        return rank if handle is None else hardware.gpu_index(handle)

    def wait_until_nobody_of(self, pids: Collection[int]) -> None:
        """Wait until the driver knows none of these processes any more."""
        gone = f"processes {sorted(pids)} being off the GPU"
        wait_until(gone, lambda: not self.users() & set(pids), TEARDOWN_S)


def gpus() -> Place:
    """Return the GPUs that torch sees in a process of its own, in its order."""
    told = subprocess.run(
        [sys.executable, "-c", UUIDS], stdout=subprocess.PIPE, text=True, timeout=ANSWER_TIMEOUT_S, check=True
    )
    uuids = tuple(hardware.named(uuid) for uuid in told.stdout.split())
    return Place(device="cuda", num=len(uuids), uuids=uuids)


@contextmanager
def somebody_on(uuid: str) -> Iterator[int]:
    """Let a program that is none of ours hold a GPU; give its pid."""
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
    """Tell whether the driver names a process of ours that is surely there: in some containers it cannot."""
    first = place.uuids[0]
    with somebody_on(first) as pid:
        try:
            wait_until("the driver naming a process of ours", lambda: pid in place.users(first), 10.0)
        except AssertionError:
            return False
    place.wait_until_nobody_of([pid])
    return True
