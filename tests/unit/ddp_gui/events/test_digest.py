"""Tests of the digest of a run's events for the list: latest numbers, best value, time and small curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ddp_gui.events import event_reader
from ddp_gui.events.event_reader import Digest
from ddp_gui.events.tables import BinnedCurve
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

Happened = tuple[float, str, dict[str, Any]]


def write_events(run: RunDirectory, happened: Iterable[Happened]) -> None:
    file = EventFile(run.events)
    file.append(happened)
    file.close()


def steps(first: int, last: int, began: float = 0.0, loss: float | None = None) -> list[Happened]:
    rest = {"lr": 0.1, "grad_norm": None, "samples_per_s": 1.0, "step_time_s": 1.0, "data_time_s": 0.0}
    return [
        (began + n, "step", {"step": n, "epoch": 0, "loss": 1 / n if loss is None else loss, **rest})
        for n in range(first, last + 1)
    ]


def evaluation(step: int, value: float | None, time: float = 0.0) -> Happened:
    return time, "eval", {"step": step, "epoch": 0, "loss": 1.0, "metrics": {"accuracy": value}}


def digest_of(run: RunDirectory) -> Digest:
    digest = Digest()
    digest.catch_up(run.events)
    return digest


def assert_alike(one: Digest, other: Digest) -> None:
    """Compare two digests; sums of floats differ in the last bits by the order of addition."""
    assert (one.curve.steps_per_piece, one.curve.counts) == (other.curve.steps_per_piece, other.curve.counts)
    assert one.curve.sums == pytest.approx(other.curve.sums)
    assert replace(one, curve=BinnedCurve()) == replace(other, curve=BinnedCurve())


def test_reading_in_pieces_gives_the_same(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    start = (0.0, "state", {"state": "starting", "reason": ""})
    again = (500.0, "state", {"state": "starting", "reason": ""})
    happened = [start, *steps(1, 200), evaluation(200, 0.9, 200.0), again, *steps(101, 150, 500.0)]
    write_events(run, [*happened, evaluation(150, 0.5, 651.0)])
    at_once = digest_of(run)
    assert (at_once.step, at_once.loss, at_once.took_s) == (150, 1 / 150, 651.0 - 300.0)
    assert at_once.best == {"name": "accuracy", "value": 0.5, "step": 150}, "what was replaced counts no more"
    for size in (64, 1000, 3333):
        monkeypatch.setattr(event_reader, "BATCH_BYTES", size)
        assert_alike(digest_of(run), at_once)
