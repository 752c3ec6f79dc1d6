"""Tests of torchrun with preloaded imports:

when it forks its ranks, its arguments, and unsupported platforms.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed.run
import torch.multiprocessing
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException

from tests.harness import REPOSITORY, wait_until
from trainers.contract import config
from trainers.engines.local import fork_server, torchrun
from trainers.engines.local.torchrun import rank_exit_codes
from trainers.machine import lifeline

COMMAND = torchrun.worker_arguments(config.parse({"nproc_per_node": 2}), "runs/x-1", 40)


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(torchrun.START_METHOD, raising=False)


@pytest.fixture
def given_to_torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Return the arguments of each torchrun call, without running torchrun."""
    given: list[list[str]] = []
    monkeypatch.setattr(torch.distributed.run, "main", given.append)
    monkeypatch.setattr(lifeline, "die_with_parent", lambda _: None)
    monkeypatch.setattr(ProcessContext, "join", ProcessContext.join)  # restored with this fixture
    monkeypatch.setattr(sys, "argv", ["launch", str(os.getppid()), *COMMAND])
    for name in (lifeline.COMMAND_PID, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield given
    gc.unfreeze()


def test_ranks_that_share_the_cores_have_one_thread_each_as_torchrun_gives_them(
    given_to_torchrun: list[list[str]],
) -> None:
    fork_server.main()
    assert given_to_torchrun == [fork_server.forking(COMMAND)]
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ[lifeline.COMMAND_PID] == str(os.getpid())


def test_without_semaphores_each_rank_gets_an_interpreter(
    given_to_torchrun: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoSemaphores:
        def Event(self) -> Any:  # noqa: N802 - as multiprocessing calls it
            raise OSError(38, "function not implemented")

    monkeypatch.setattr(multiprocessing, "get_context", lambda _: NoSemaphores())
    fork_server.main()
    assert given_to_torchrun == [COMMAND]
    assert "function not implemented" in capsys.readouterr().out


def test_the_rendezvous_does_not_sleep_for_a_random_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[object] = []
    monkeypatch.setattr(dynamic_rendezvous, "_delay", slept.append)
    fork_server.skip_random_delay()
    handler = Mock(_state_holder=Mock(state=Mock(round=0)), _get_world=lambda: (0, 1))
    dynamic_rendezvous.DynamicRendezvousHandler.next_rendezvous(handler)
    assert slept == []
    dynamic_rendezvous._delay(seconds=1)
    assert slept == [1]


@pytest.mark.slow
def test_the_end_of_every_rank_is_told_though_torchrun_names_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessContext, "join", ProcessContext.join)  # restored after this test
    fork_server.note_every_end()
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
        "for name in launch.NEEDED_BY_ANY_RUN: importlib.import_module(name)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(REPOSITORY), env=environment, capture_output=True, check=True
    )
    assert printed.stdout == b"1\n"
