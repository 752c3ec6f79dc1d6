"""Tests of rank 0's reporter: a slow disk loses only steps, and a failing one nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.harness import all_events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.report import reporter
from trainers.report.reporter import Reporter, StepBatch


def batch_of(*numbers: int) -> StepBatch:
    notes = [(number, 0, 0.1, 4, 0.1, 0.05) for number in numbers]
    return StepBatch(notes=notes, losses=[number / 10 for number in numbers], grad_norm=2.5)


def test_slow_disk_thins_steps_says_so_and_keeps_everything_else(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "MAX_QUEUED_STEPS", 10)
    may_write = threading.Event()
    is_writing = threading.Event()
    append = EventFile.append

    def slow_append(file: EventFile, batch: Iterable[Any]) -> int:
        is_writing.set()
        assert may_write.wait(60)
        return append(file, batch)

    monkeypatch.setattr(EventFile, "append", slow_append)
    voice = Reporter(run)
    voice.state("running", "")
    assert is_writing.wait(60)
    for number in range(1, 101):
        voice.steps(batch_of(number))
        voice.event("checkpoint", step=number)
    may_write.set()
    voice.close()
    found = all_events(run)
    assert [event["step"] for event in found if event["kind"] == "checkpoint"] == list(range(1, 101))
    steps = [event["step"] for event in found if event["kind"] == "step"]
    assert steps == list(range(1, 11))
    (warning,) = [event for event in found if event["kind"] == "warning"]
    assert warning["code"] == "steps_thinned" and warning["message"].startswith("90 step events")
    assert [event["seq"] for event in found] == list(range(len(found)))


def test_disk_that_fails_for_a_while_loses_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "RETRY_EVERY_S", 0.01)
    failures = iter([OSError("disk full")] * 3)
    append = EventFile.append

    def failing_append(file: EventFile, batch: Sequence[Any]) -> int:
        error = next(failures, None)
        if error is not None:
            raise error
        return append(file, batch[:1])  # the first part only; the next call writes the rest

    monkeypatch.setattr(EventFile, "append", failing_append)
    voice = Reporter(run)
    voice.state("starting", "")
    voice.steps(batch_of(1, 2))
    voice.state("running", "")
    voice.close()
    found = all_events(run)
    assert [event["kind"] for event in found] == ["state", "step", "step", "state"]
    assert next(failures, "used up") == "used up"
