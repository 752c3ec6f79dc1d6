"""Tests of the recorder of one rank: names of collectives, and a write that fails."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.unit.fakes import world_of
from trainers import control
from trainers.contract.commands import Command
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.parallel.strategy import Strategy
from trainers.recording import recorder
from trainers.recording.profiled import Collective
from trainers.report.observer import NullObserver
from trainers.report.reporter import NullReporter


class Reporter(NullReporter):
    """Keeps all warnings."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []

    def warning(self, code: str, message: str, hint: str) -> None:
        self.warnings.append((code, message))


@pytest.fixture
def job(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a job of one rank that has completed four steps."""
    monkeypatch.setattr(recorder, "gather_json", lambda value, _group: [json.loads(json.dumps(value))])
    world = world_of(1)
    strategy = Strategy(Config(), world)
    strategy.wrap(nn.Linear(2, 1))
    return SimpleNamespace(
        run=run,
        world=world,
        strategy=strategy,
        reporter=Reporter(),
        observer=NullObserver(),
        progress=SimpleNamespace(step=4),
        has_ended=lambda: False,
    )


def test_a_full_disk_is_a_warning_and_training_goes_on(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder, "write_json_atomically", full)
    control.execute(job, Command(name="record", num_steps=1))
    go_through(job.observer, 5)
    ((code, message),) = job.reporter.warnings
    assert code == "no_recording" and "the disk is full" in message
    assert not job.observer.is_recording
    go_through(job.observer, 6)


def go_through(observer: NullObserver, step: int) -> None:
    observer.begin_step(is_reported=False)
    observer.data_fetched()
    observer.forward_done()
    observer.backward_done(is_last=True)
    observer.optimizer_done()
    observer.end_step(step)


@pytest.mark.parametrize(
    ("name", "is_all_reduce", "algorithm"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True, "ring"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", True, "tree"),
        ("gloo:all_reduce", True, None),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", False, "ring"),
        ("gloo:broadcast", False, None),
    ],
)
def test_names_of_the_profiler_say_what_goes_round(
    name: str, is_all_reduce: bool, algorithm: str | None
) -> None:
    found = Collective(name=name, began_ns=0, ended_ns=50, num_bytes=4)
    assert (found.is_all_reduce, found.algorithm) == (is_all_reduce, algorithm)
