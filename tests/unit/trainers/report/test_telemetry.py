"""Tests of the first telemetry samples when some ranks start to sample later than rank 0."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.fakes import world_of
from trainers.contract import events, heartbeats
from trainers.report import samples, telemetry
from trainers.report.reporter import NullReporter
from trainers.report.telemetry import Holdings, Pulse, Telemetry

LATE_S = 0.4


class DeviceEvents(NullReporter):
    """Keeps the ranks of each `devices` event."""

    def __init__(self) -> None:
        self.ranks: queue.Queue[list[int]] = queue.Queue()

    def event(self, kind: str, **fields: Any) -> None:
        if kind == "devices":
            self.ranks.put([device["rank"] for device in fields["devices"]])


def test_a_sample_says_what_the_rank_is_doing() -> None:
    telemetry_of_rank = Telemetry(world_of(2, rank=1), NullReporter(), Pulse())
    heartbeats.write_heartbeat(heartbeats.EVALUATING)
    entry = telemetry_of_rank.sample_once()["rank"]
    assert entry["doing"] == "evaluating"
    assert (*entry, "loss") == events.RANK_FIELDS, "only scripts have a loss of each rank"


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses of rank 0's sample board; no process group is used."""
    found: list[str] = []

    def gather_json(mine: Any, _group: Any) -> list[Any]:
        found.append(mine)
        return [mine]

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(telemetry, "gather_json", gather_json)
    monkeypatch.setattr(telemetry, "is_one_machine", lambda: True)
    return found


def test_the_first_report_has_every_rank_though_one_begins_later(addresses: list[str]) -> None:
    reported = DeviceEvents()
    rank_0 = Telemetry(world_of(2), reported, Pulse())
    rank_0.start()
    sample = Telemetry(world_of(2, rank=1), NullReporter(), Pulse()).sample_once()
    timer = threading.Timer(LATE_S, samples.find_sample_board(addresses[0]).write, (1, sample))
    timer.start()
    assert reported.ranks.get(timeout=10) == [0, 1]
    timer.join()
    rank_0.stop()


def test_a_rank_that_never_samples_holds_up_only_the_first_report(addresses: list[str]) -> None:
    reported = DeviceEvents()
    rank_0 = Telemetry(world_of(2), reported, Pulse())
    rank_0.start()
    assert addresses
    assert [reported.ranks.get(timeout=10) for _ in range(3)] == [[0], [0], [0]]
    rank_0.stop()


def test_what_ranks_hold_is_reported_at_once_and_of_all_of_them(addresses: list[str]) -> None:
    class Held(DeviceEvents):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "ranks":
                self.ranks.put([rank["parameter_bytes"] for rank in fields["ranks"]])

    reported, mine, others = Held(), Pulse(), Pulse()
    rank_0, rank_1 = (
        Telemetry(world_of(2), reported, mine),
        Telemetry(world_of(2, rank=1), NullReporter(), others),
    )
    rank_0.start()
    board = samples.find_sample_board(addresses[0])
    board.write(1, rank_1.sample_once())
    assert reported.ranks.get(timeout=10) == [None, None]
    network = nn.Linear(3, 1)
    mine.holdings = Holdings(
        network=network, optimizer=torch.optim.SGD(network.parameters()), parameter_bytes=16
    )
    mine.news.set()
    others.holdings = mine.holdings
    timer = threading.Timer(LATE_S, board.write, (1, rank_1.sample_once()))
    timer.start()
    found = reported.ranks.get(timeout=10)
    while found == [None, None]:  # the periodic report came first
        found = reported.ranks.get(timeout=10)
    assert found == [16, 16]
    timer.join()
    rank_0.stop()
