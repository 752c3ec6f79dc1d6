"""Tests of clock offsets between machines: estimates from pings, and their error bounds."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist

from trainers.parallel.process_group import World
from trainers.recording import profiled, whole
from trainers.recording.profiled import Ping, Skew


def test_the_quickest_ping_counts_and_half_of_its_way_is_the_error() -> None:
    pings = [
        Ping(sent_ns=0, answered_ns=9_000, returned_ns=1_000),
        Ping(sent_ns=5_000, answered_ns=10_110, returned_ns=5_201),
    ]
    assert profiled.skew_of(pings) == Skew(ahead_ns=10_110 - 5_100, error_ns=101)


@pytest.mark.parametrize("ahead_ns", [-3_000_000, 0, 7_500_000])
@pytest.mark.parametrize("way_there_ns", [10, 50, 190])
def test_the_true_skew_is_never_further_away_than_the_error(ahead_ns: int, way_there_ns: int) -> None:
    ping = Ping(sent_ns=1_000, answered_ns=1_000 + way_there_ns + ahead_ns, returned_ns=1_200)
    found = profiled.skew_of([ping])
    assert abs(found.ahead_ns - ahead_ns) <= found.error_ns == 100


def test_another_machines_moments_come_onto_the_clock_of_the_first() -> None:
    def notes(rank: int, began: int) -> dict[str, object]:
        parts = [["data", began, began + 100], ["forward", began + 100, began + 1000]]
        one = {"step": 4, "began": began, "ended": began + 1000, "parts": parts, "collectives": []}
        steps = [{**one, "all_reduces": [{"bucket": 0, "began": began, "ended": began + 900, "rounds": []}]}]
        bucket = [["weight", 40], ["bias", 8]]
        return {
            "rank": rank,
            "node": rank,
            "host": "",
            "problem": None,
            "steps": steps,
            "buckets": [bucket],
            "algorithms": [],
        }

    class Ddp:
        name, all_reduce = "ddp", "gloo"

    world = World(rank=0, local_rank=0, world_size=2, node=0, device=torch.device("cpu"))
    skews = {0: Skew(), 1: Skew(ahead_ns=5_000_000, error_ns=300)}
    found = whole.of(
        [notes(0, 2_000), notes(1, 5_002_500)],
        skews,
        Ddp(),  # type: ignore[arg-type]
        world,
        ended_early=None,
    )
    assert [rank["steps"][0]["began_s"] for rank in found["ranks"]] == [0.0, 5e-7]
    assert found["clock"] == {
        "method": "pings",
        "error_s": 3e-7,
        "num_checked": 1,
        "worst_contradiction_s": 0.0,
    }
    assert found["buckets"] == [
        {"bytes": 48, "parameters": [{"name": "weight", "bytes": 40}, {"name": "bias", "bytes": 8}]}
    ]
    with pytest.raises(ValueError, match=r"no step was recorded\. The run was paused\."):
        whole.of([{**notes(0, 0), "steps": []}], skews, Ddp(), world, ended_early="The run was paused.")  # type: ignore[arg-type]


def test_a_ping_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads act as the two ranks; a message sent by one is received by the other."""
    mailboxes = {0: threading.Semaphore(0), 1: threading.Semaphore(0)}
    values: dict[int, int] = {}
    me = threading.local()

    def send(message: torch.Tensor, dst: int, group: object) -> None:
        values[dst] = int(message.item())
        mailboxes[dst].release()

    def recv(message: torch.Tensor, src: int, group: object) -> None:
        assert mailboxes[me.rank].acquire(timeout=30)
        message[0] = values[me.rank]

    monkeypatch.setattr(dist, "send", send)
    monkeypatch.setattr(dist, "recv", recv)
    found: dict[int, dict[int, Skew]] = {}

    def be(rank: int) -> None:
        me.rank = rank
        world = World(rank=rank, local_rank=0, world_size=2, node=rank, device=torch.device("cpu"))
        found[rank] = profiled.measure_clock_skew(world, [0, 1])

    threads = [threading.Thread(target=be, args=(rank,)) for rank in (0, 1)]
    began = time.monotonic_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_ns = time.monotonic_ns() - began
    skew = found[0][1]
    assert abs(skew.ahead_ns) <= skew.error_ns <= took_ns, "it is one clock here"
