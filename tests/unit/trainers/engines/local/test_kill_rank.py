"""Tests of how the process of a rank to kill is identified: never by its process id alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from trainers.contract import events, rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines.local import stopping
from trainers.machine import processes

# Two "ranks", each with its log as output. Children of rank 1 share its output, as data loader workers do.
SCRIPT = 'sleep 100 > "$1/rank_0.log" & sh -c "sleep 100 & sleep 100; true" > "$1/rank_1.log" & wait'


@dataclass(frozen=True, kw_only=True)
class Family:
    """A run, its status, and the descendants of its supervisor by the name of their log."""

    run: RunDirectory
    status: Status
    supervisor: psutil.Process

    def below(self, log: str) -> list[psutil.Process]:
        return [
            process
            for process in self.supervisor.children(recursive=True)
            if (output := processes.output_of(process.pid)) is not None and output.name == log
        ]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    run = rundir.create(tmp_path, Config(nproc_per_node=2))
    run.logs.mkdir(exist_ok=True)
    lock = run.acquire_lock()
    started = subprocess.Popen(["sh", "-c", SCRIPT, "sh", str(run.logs)])
    supervisor = psutil.Process(started.pid)
    status = Status(
        state="running", handle={"pid": supervisor.pid, "pid_start_time": supervisor.create_time()}
    )
    run.write_status(status)
    made = Family(run=run, status=status, supervisor=supervisor)
    wait_until(
        "the processes",
        lambda: len(made.below("rank_1.log")) == 3 and made.below("rank_0.log"),
        ANSWER_TIMEOUT_S,
    )
    yield made
    for process in [*supervisor.children(recursive=True), supervisor]:
        process.kill()
    started.wait()
    os.close(lock)


def test_a_rank_that_is_not_there_and_a_process_that_only_has_the_supervisors_number_are_refused(
    family: Family,
) -> None:
    other = replace(family.status, handle={"pid": family.supervisor.pid, "pid_start_time": 1.0})
    for status, rank in ((other, 1), (family.status, 2)):
        words = rf"rank {rank} of run .* has no process on this machine at the moment"
        with pytest.raises(ValueError, match=words):
            stopping.kill_rank(family.run, status, rank)
    assert len(family.below("rank_1.log")) == 3
    assert not list(events.read_all(family.run.events))
