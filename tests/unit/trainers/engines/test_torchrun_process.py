"""Tests of torchrun with preloaded imports: the ends of its ranks, and threads before the fork."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed.run
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException

from tests.harness import REPOSITORY, wait_until
from trainers.engines.local import fork_server
from trainers.engines.local.torchrun import rank_exit_codes


@pytest.mark.slow
def test_the_end_of_every_rank_is_told_though_torchrun_names_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessContext, "join", ProcessContext.join)  # restored after this test
    fork_server.log_every_exit()
    ranks = torch.multiprocessing.start_processes(_end_with, args=([1, 9],), nprocs=2, join=False)
    for process in ranks.processes:
        wait_until("its end", lambda process=process: has_ended(process), 60.0)
    with pytest.raises(ProcessExitedException):
        ranks.join(-1)
    assert rank_exit_codes(capsys.readouterr().out) == {0: 1, 1: 9}


def _end_with(rank: int, exit_codes: Sequence[int]) -> None:
    os._exit(exit_codes[rank])


def has_ended(process: multiprocessing.process.BaseProcess) -> bool:
    """Return True if a child's exit code can be read: it can be a zombie earlier, while a thread ends."""
    assert process.pid is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


@pytest.mark.slow
def test_what_is_imported_before_the_fork_starts_no_thread() -> None:
    script = (
        "import importlib, os\nfrom trainers.engines.local import fork_server as launch\n"
        "for name in launch.PRELOADED_MODULES: importlib.import_module(name)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(REPOSITORY), env=environment, capture_output=True, check=True
    )
    assert printed.stdout == b"1\n"
