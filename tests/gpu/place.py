"""Where the tests of this folder run, and who is on which GPU as the driver tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from trainers.contract import hardware

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
    """

    device: str
    num: int

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def users(self, index: int | None = None) -> set[int]:
        """Return who computes on a GPU (by its place among those that may be used), or on any of them."""
        if not self.is_gpu:
            return set()
        gpus = hardware.visible_gpus()
        chosen = gpus if index is None else [gpus[index]]
        found: set[int] = set()
        for gpu in chosen:
            users = hardware.gpu_processes(gpu.handle) if gpu.handle is not None else None
            assert users is not None, f"the driver does not say who is on GPU {gpu.index}"
            found |= {user.pid for user in users if not user.draws}
        return found

    def gpus_of(self, pid: int) -> set[int]:
        """Return the GPUs that a process is on, by their places among those that may be used."""
        return {index for index in range(self.num) if pid in self.users(index)}

    def wait_until_nobody_of(self, pids: Collection[int]) -> None:
        """Wait until the driver knows none of these processes any more."""
        gone = f"processes {sorted(pids)} being off the GPU"
        wait_until(gone, lambda: not self.users() & set(pids), TEARDOWN_S)


@contextmanager
def somebody_on(index: int) -> Iterator[int]:
    """Let a program that is none of ours hold a GPU, by its place among the visible ones; give its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": hardware.visible_gpus()[index].uuid},
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
    with somebody_on(0) as pid:
        try:
            wait_until("the driver naming a process of ours", lambda: pid in place.users(0), 10.0)
        except AssertionError:
            return False
    place.wait_until_nobody_of([pid])
    return True
