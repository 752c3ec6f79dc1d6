"""The all-reduce in shared memory detects a rank that exits or does not arrive, and unsupported setups.

The two ranks are two objects of this process. They use the same memory and pipes as two processes do.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

from trainers.parallel import shared_all_reduce
from trainers.parallel.process_group import World
from trainers.parallel.shared_all_reduce import SharedSum


def rank_of_two(rank: int) -> World:
    return World(rank=rank, local_rank=rank, world_size=2, node=0, device=torch.device("cpu"))


def two_ranks(timeout_s: float) -> tuple[SharedSum, SharedSum]:
    ranks = SharedSum(rank_of_two(0), timeout_s), SharedSum(rank_of_two(1), timeout_s)
    there = [rank.addresses() for rank in ranks]
    for rank in ranks:
        rank.connect(there)
    for rank in ranks:
        rank.settle()
    return ranks


def test_who_goes_is_noticed_at_once() -> None:
    one, other = two_ranks(60.0)
    leaving = threading.Timer(0.2, other.close)
    began = time.monotonic()
    leaving.start()
    with pytest.raises(RuntimeError, match="connection closed by peer: rank 1 has gone"):
        one.average(torch.ones(10))
    assert time.monotonic() - began < 10.0
    with pytest.raises(RuntimeError, match="rank 1 has gone"):
        one.average(torch.ones(10))
    one.close()


def test_who_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    one, other = two_ranks(0.3)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out waiting 300 ms for the gradients of rank 1"):
        one.average(torch.ones(10))
    assert time.monotonic() - began >= 0.29
    one.close()
    other.close()


def test_it_is_not_for_ranks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns None without a collective call, because this test has no process group."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="process group"):
        shared_all_reduce.create(rank_of_two(0), 1.0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert shared_all_reduce.create(rank_of_two(0), 1.0) is None


def test_every_rank_has_the_mean_in_the_order_of_the_ranks() -> None:
    cpu = torch.device("cpu")
    worlds = [World(rank=rank, local_rank=rank, world_size=3, node=0, device=cpu) for rank in range(3)]
    ranks = [SharedSum(world, 60.0) for world in worlds]
    there = [rank.addresses() for rank in ranks]
    for rank in ranks:
        rank.connect(there)
    for rank in ranks:
        rank.settle()
    pieces = shared_all_reduce.CHUNK_BYTES // 4
    for size, kind in (
        (1, torch.float64), (7, torch.bfloat16), (pieces, torch.float32), (3 * pieces + 5, torch.float32),
        (3 * pieces + 5, torch.bfloat16),
    ):  # fmt: skip
        values = [torch.randn(size).to(kind) for _ in ranks]
        expected = values[0] / 3 + values[1] / 3 + values[2] / 3
        averaging = [threading.Thread(target=ranks[rank].average, args=(values[rank],)) for rank in range(3)]
        for thread in averaging:
            thread.start()
        for thread in averaging:
            thread.join()
        assert all(torch.equal(each, expected) for each in values), f"{size} {kind}"
    for rank in ranks:
        rank.close()
