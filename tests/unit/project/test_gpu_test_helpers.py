"""What the tests on GPUs stand on, where there is none: which GPU is which, and nothing is left running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.gpu import place
from tests.gpu.place import Place
from tests.harness import run_to_end, wait_until
from tests.unit.fake_gpus import FakeGpu, FakeNvml
from trainers.machine import hardware

# As torch tells it: without its beginning.
BARE = ("3333", "1111")
HOLDS_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, file=open(sys.argv[1], "w"), flush=True)
child.wait()
"""


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver be a fake with four GPUs, process 100 + i on GPU i; CUDA sees 3, then 1."""
    fake = FakeNvml([FakeGpu(uuid=f"GPU-{index * 1111:04}", pids=(100 + index,)) for index in range(4)])
    monkeypatch.setattr(hardware, "_nvml_and_problem", lambda: (fake, None, ""))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr(place, "UUIDS", f"print(*{BARE!r}, sep=chr(10))")


@pytest.mark.usefixtures("four")
def test_gpus_are_counted_as_cuda_counts_them() -> None:
    """Rank 0 is on the first of CUDA_VISIBLE_DEVICES, which is not the first of the machine."""
    found = place.gpus()
    assert found == Place(device="cuda", num=2, uuids=("GPU-3333", "GPU-1111"))
    assert [found.index_of(rank) for rank in range(2)] == [3, 1]
    assert [found.users(uuid) for uuid in found.uuids] == [{103}, {101}]
    assert found.users() == {101, 103}, "of those that are not for us nothing is asked"
    assert found.gpus_of(103) == {"GPU-3333"}


@pytest.mark.slow
def test_no_gpu_is_a_place_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert place.gpus().num == 0


def test_a_program_that_takes_too_long_leaves_nothing_behind(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run_to_end([sys.executable, "-c", HOLDS_A_CHILD, str(noted)], 3.0)
    child = int(noted.read_text())
    wait_until("the child being gone", lambda: not _lives(child), 10.0)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
