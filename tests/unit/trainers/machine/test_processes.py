"""Tests of processes: the title of a rank, and which ones hold a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ddp_gui.devices.capacity import Owners
from trainers.machine import processes

CALLED = """
import os, sys
from trainers.machine import processes
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
for run_id in sys.stdin.readline().strip().split(","):
    processes.show_rank(run_id, 3)
print("called", file=sys.stderr, flush=True)
sys.stdin.readline()
"""


@contextmanager
def called(run_ids: str, output: str = os.devnull) -> Iterator[int]:
    """Start a process that names itself rank 3 of these runs, one after the other; yield its process id."""
    command = [sys.executable, "-c", CALLED, output]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(f"{run_ids}\n")
        process.stdin.flush()
        assert process.stderr.readline() == "called\n"
        yield process.pid


def test_a_rank_is_recognised_by_run_and_number() -> None:
    with called("mnist-cnn-0,mnist-cnn-1") as pid:
        facts = processes.inspect(pid)
        assert facts is not None
        assert " ".join(facts.command_line) == facts.name == "ddp: mnist-cnn-1 rank 3", "the newest title"
        assert Path(f"/proc/{pid}/comm").read_text() == "ddp-rank-3\n", "no blank: Slurm would lose it"
        assert psutil.Process(pid).environ().items() >= os.environ.items(), "nothing else is written over"


def test_a_rank_with_a_title_is_its_run_s_by_its_output(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "run-1" / "logs"
    logs.mkdir(parents=True)
    with called("another-1", str(logs / "rank_3.log")) as pid:
        assert Owners(tmp_path / "runs").run_of(pid) == "run-1"
        assert Owners(tmp_path / "runs").live_runs() == {"run-1": [pid]}


def test_who_has_the_driver_open_holds_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia0"
    driver.touch()
    monkeypatch.setattr(processes, "_GPU_FILES", (str(tmp_path / "nvidia"),))
    assert not processes.holds_gpu(os.getpid())
    with driver.open():
        assert processes.holds_gpu(os.getpid())
    assert not processes.holds_gpu(os.getpid())
