"""Tests of a recording on one rank, from the command to the file; a failed write does not end the run."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.trainers.recording.test_observer import go_through
from trainers import control
from trainers.contract.commands import Command
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.recording import recorder
from trainers.report.observer import NullObserver
from trainers.report.reporter import NullReporter


class Reporter(NullReporter):
    """Keeps all events and answers."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.answers: list[tuple[bool, str]] = []

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def warning(self, code: str, message: str, hint: str) -> None:
        self.event("warning", code=code, message=message, hint=hint)

    def answer(self, command: Command, *, step: int, accepted: bool, message: str) -> None:
        self.answers.append((accepted, message))


@pytest.fixture
def job(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a job of one rank that has completed four steps."""
    monkeypatch.setattr(recorder, "gather_json", lambda value, _group: [json.loads(json.dumps(value))])
    world = World(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"))
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


def record(job: SimpleNamespace, num_steps: int) -> None:
    control.obey(job, Command(name="record", num_steps=num_steps))


def test_a_full_disk_is_a_warning_and_training_goes_on(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder, "write_json_atomically", full)
    record(job, 1)
    go_through(job.observer, 5)
    (event,) = job.reporter.events
    assert event["code"] == "no_recording" and "the disk is full" in event["message"]
    assert not job.observer.is_recording
    go_through(job.observer, 6)


def test_a_folder_that_is_a_file_is_a_warning(job: SimpleNamespace) -> None:
    job.run.recordings.write_text("in the way")
    record(job, 1)
    go_through(job.observer, 5)
    assert [event.get("code") for event in job.reporter.events] == ["no_recording"]
    assert job.run.recordings.read_text() == "in the way"
