"""Tests of sharding: each sample once per epoch, and weights that make DDP's mean the global mean."""

from __future__ import annotations

import pytest
import torch

from trainers.data.micro_batches import MicroBatch, ShardedBatches, steps_per_epoch

CASES = [
    # samples, batch per rank, ranks
    (64, 8, 2),
    (65, 8, 2),  # the last global batch has one sample and rank 1 has none
    (71, 8, 2),  # 7 left: four and three
    (100, 7, 3),
    (5, 4, 8),  # fewer samples than ranks
    (1, 1, 4),
    (3, 64, 1),
    (1437, 32, 2),
]


def shards(
    num_samples: int,
    batch_size: int,
    world_size: int,
    epoch: int = 0,
    first: int = 0,
    num_accumulated: int = 1,
) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches of one epoch."""
    per_rank = []
    for rank in range(world_size):
        batches = ShardedBatches(
            num_samples,
            batch_size,
            num_accumulated=num_accumulated,
            seed=3,
            replica=rank,
            num_replicas=world_size,
        )
        batches.set_epoch(epoch)
        per_rank.append(list(batches.starting_at(first)))
    return per_rank


def counted(shard: MicroBatch) -> list[int]:
    """Return the samples of a shard that have a weight above 0."""
    return shard.indices.tolist() if shard.weight > 0 else []


def test_each_epoch_is_shuffled_anew_and_the_same_way_again() -> None:
    first, second = shards(100, 10, 2, epoch=0)[0], shards(100, 10, 2, epoch=1)[0]
    assert [s.indices.tolist() for s in first] != [s.indices.tolist() for s in second]
    again = shards(100, 10, 2, epoch=1)[0]
    assert [s.indices.tolist() for s in second] == [s.indices.tolist() for s in again]
    assert sorted(i for s in first for i in s.indices.tolist()) != list(range(50)), "not shuffled at all"


def test_starting_in_the_middle_gives_the_rest_of_the_same_epoch() -> None:
    whole = shards(100, 10, 2, epoch=4)[1]
    rest = shards(100, 10, 2, epoch=4, first=3 * 20)[1]
    assert [s.indices.tolist() for s in rest] == [s.indices.tolist() for s in whole[3:]]
    assert shards(100, 10, 2, first=5 * 20)[0] == []


@pytest.mark.parametrize(("num_samples", "batch_size", "world_size"), CASES)
@pytest.mark.parametrize("num_accumulated", [1, 3])
def test_ranks_step_together_see_each_sample_once_and_average_to_the_global_mean(
    num_samples: int, batch_size: int, world_size: int, num_accumulated: int
) -> None:
    """The average is DDP's, of the gradients of `loss * weight`, computed with plain numbers."""
    values = torch.arange(num_samples, dtype=torch.float64) ** 1.5
    per_rank = shards(num_samples, batch_size, world_size, num_accumulated=num_accumulated)
    assert len({tuple(piece.is_last for piece in rank) for rank in per_rank}) == 1, "all ranks step together"
    total, members, seen = 0.0, [], []
    num_steps = 0
    for pieces in zip(*per_rank, strict=True):
        assert all(1 <= len(piece.indices) <= batch_size for piece in pieces)
        total += sum(float(values[piece.indices].mean() * piece.weight) for piece in pieces) / world_size
        members += [index for piece in pieces for index in counted(piece)]
        if pieces[0].is_last:
            assert len(members) == pieces[0].num_global
            assert total == pytest.approx(float(values[torch.tensor(members)].mean()))
            seen += members
            total, members = 0.0, []
            num_steps += 1
    assert sorted(seen) == list(range(num_samples))
    assert num_steps == steps_per_epoch(num_samples, batch_size * world_size * num_accumulated)
    assert shards(64, 8, 2)[1][0].weight == 1.0, "full batches weigh exactly one"


@pytest.mark.parametrize(
    ("before", "after"), [((10, 2), (20, 1)), ((20, 1), (10, 2)), ((10, 2), (5, 4)), ((10, 2), (10, 3))]
)
def test_going_on_with_other_ranks_sees_every_sample_of_the_epoch_once(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    used = 3 * before[0] * before[1]
    first = [i for rank in shards(101, *before) for piece in rank[:3] for i in counted(piece)]
    rest = [i for rank in shards(101, *after, first=used) for piece in rank for i in counted(piece)]
    assert len(first) == used
    assert sorted(first + rest) == list(range(101))
