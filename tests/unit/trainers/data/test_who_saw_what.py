"""The torch-free rule that assigns samples to ranks agrees with the sampler used in training."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from ddp_gui.run import samples
from ddp_gui.run.samples import NO_SAMPLER, NO_SET_EPOCH, Dealing, Sampling, sampling_of, shuffled_order
from trainers.contract import config as config_module
from trainers.data.micro_batches import ShardedBatches

Look = tuple[int, int, int, int]  # sample, step, replica, micro-batch

MILLION = 1_000_000
# It takes 0.3 s; one look at a time would take minutes.
MOST_CPU_S = 10.0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**40 + 3])
def test_order_is_the_one_torch_shuffles(seed: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(seed)
    for num_samples in [0, 1, 2, 3, 4, 623, 624, 625, 1437, 20_000, *random.integers(5, 3000, 20).tolist()]:
        generator = torch.Generator().manual_seed(seed)
        expected = torch.randperm(num_samples, generator=generator, dtype=dtype).numpy()
        np.testing.assert_array_equal(shuffled_order(num_samples, seed), expected)


def loaded(sampling: Sampling, dealing: Dealing, epoch: int, last_step: int | None = None) -> Iterator[Look]:
    """Yield the samples of an epoch that each rank loads, from the first step of this start."""
    is_alone = sampling.mistake == NO_SAMPLER
    first = dealing.samples_in_epoch if epoch == dealing.epoch else 0
    for replica in range(dealing.num_replicas):
        batches = ShardedBatches(
            sampling.num_samples,
            dealing.batch_size,
            num_accumulated=dealing.num_accumulated,
            seed=sampling.seed,
            replica=0 if is_alone else replica,
            num_replicas=1 if is_alone else dealing.num_replicas,
        )
        batches.set_epoch(0 if sampling.mistake == NO_SET_EPOCH else epoch)
        step, piece = dealing.step + 1, 0
        for batch in batches.starting_at(first):
            if last_step is not None and step > last_step:
                break
            if batch.weight > 0:
                yield from ((sample, step, replica, piece) for sample in batch.indices.tolist())
            step, piece = (step + 1, 0) if batch.is_last else (step, piece + 1)


def by_rule(sampling: Sampling, epoch: int) -> list[Look]:
    order = shuffled_order(sampling.num_samples, sampling.seed_of(epoch))
    return [
        (int(sample), look.step, look.replica, look.micro_batch)
        for place, sample in enumerate(order)
        for look in sampling.seen(epoch, place)
    ]


CASES = [
    # samples, batch, accumulated, ranks
    (65, 8, 1, 2),  # the last global batch has one sample
    (100, 7, 1, 3),
    (100, 7, 3, 2),  # with accumulation the last step has fewer micro-batches
    (5, 4, 1, 8),
    (1437, 32, 2, 4),
]


@pytest.mark.parametrize("mistake", ["none", NO_SAMPLER, NO_SET_EPOCH])
@pytest.mark.parametrize(("num_samples", "batch_size", "num_accumulated", "num_replicas"), CASES)
def test_rule_is_that_of_the_sampler(
    num_samples: int, batch_size: int, num_accumulated: int, num_replicas: int, mistake: str
) -> None:
    first = Dealing(batch_size=batch_size, num_accumulated=num_accumulated, num_replicas=num_replicas)
    sampling = Sampling(num_samples=num_samples, seed=3, dealings=(first,), mistake=mistake)
    (piece,) = sampling.pieces(1)
    later = replace(first, step=piece.first_step - 1)
    assert Counter(by_rule(sampling, 0)) == Counter(loaded(sampling, first, 0))
    assert Counter(by_rule(sampling, 1)) == Counter(loaded(sampling, later, 1))
    assert sampling.pieces(1)[0].first_step == sampling.pieces(0)[0].num_steps + 1


@pytest.mark.parametrize("mistake", ["none", NO_SAMPLER, NO_SET_EPOCH])
def test_rule_goes_on_with_other_ranks_where_a_run_was_resumed(mistake: str) -> None:
    before = Dealing(batch_size=7, num_accumulated=1, num_replicas=3)
    num_dealt = 1 if mistake == NO_SAMPLER else 3
    after = Dealing(
        step=4, samples_in_epoch=4 * 7 * num_dealt, batch_size=5, num_accumulated=2, num_replicas=2
    )
    sampling = Sampling(num_samples=200, seed=3, dealings=(before, after), mistake=mistake)
    expected = [*loaded(sampling, before, 0, last_step=4), *loaded(sampling, after, 0)]
    assert Counter(by_rule(sampling, 0)) == Counter(expected)


def test_start_from_an_earlier_step_takes_back_what_came_after_it() -> None:
    config = config_module.parse({"batch_size": 10, "nproc_per_node": 2})
    start = {"epoch": 0, "batch_size": 10, "num_accumulated": 1, "num_replicas": 2}
    plans = [
        {"num_train": 100, "dealing": {**start, "step": step, "samples_in_epoch": 20 * step}}
        for step in (0, 4, 2)
    ]
    sampling = sampling_of(config, plans, 2)
    assert sampling is not None
    assert [dealing.step for dealing in sampling.dealings] == [0, 2]
    assert [(piece.first_step, piece.num_steps) for piece in sampling.pieces(0)] == [(1, 2), (3, 3)]


def test_older_runs_say_how_they_began_but_not_how_they_were_resumed() -> None:
    config = config_module.parse({"batch_size": 10, "nproc_per_node": 2})
    plan = {"num_train": 100}
    sampling = sampling_of(config, [plan], 2)
    assert sampling is not None and sampling.pieces(0)[0].global_batch == 20
    assert sampling_of(config, [plan, plan], 2) is None
    assert sampling_of(config, [], 2) is None


def of_one_start(num_samples: int, num_replicas: int = 2, mistake: str = "none") -> Sampling:
    dealing = Dealing(batch_size=32, num_accumulated=1, num_replicas=num_replicas)
    return Sampling(num_samples=num_samples, seed=3, dealings=(dealing,), mistake=mistake)


@pytest.mark.parametrize("mistake", ["none", NO_SAMPLER])
@pytest.mark.parametrize("num_replicas", [2, 20])
@pytest.mark.parametrize("by", ["sample", "place"])
def test_picture_counts_every_look_once(by: samples.By, num_replicas: int, mistake: str) -> None:
    sampling = of_one_start(1437, num_replicas, mistake)
    first, end = 100, 1000
    drawn = samples.sample_picture(sampling, 1, by, first, end)
    columns, rows, ranks = drawn["columns"], drawn["rows"], drawn["ranks"]
    found = np.array(drawn["counts"]).reshape(rows["number"], columns["number"], ranks["number"])
    expected = np.zeros_like(found)
    for place, sample in enumerate(shuffled_order(1437, 4)):
        column = int(sample) if by == "sample" else place
        if first <= column < end:
            for look in sampling.seen(1, place):
                cell = (look.step - rows["first"]) // rows["size"], (column - first) // columns["size"]
                expected[(*cell, look.replica // ranks["size"])] += 1
    np.testing.assert_array_equal(found, expected)
    assert found[0].any() and found[-1].any()


def test_one_sample_is_followed_through_the_epochs() -> None:
    sampling = of_one_start(1437)
    assert samples.times_seen(sampling, 0) == {"fewest": 1, "most": 1}
    assert samples.times_seen(of_one_start(1437, 4, NO_SAMPLER), 0) == {"fewest": 4, "most": 4}
    epochs, is_all = samples.list_accesses(sampling, 5, 3)
    assert is_all and [found["epoch"] for found in epochs] == [0, 1, 2]
    for found in epochs:
        assert shuffled_order(1437, 3 + found["epoch"])[found["place"]] == 5
        assert len(found["seen"]) == 1


@pytest.mark.slow
def test_a_million_samples_are_drawn_quickly() -> None:
    shuffled_order.cache_clear()
    sampling = of_one_start(MILLION)
    began = time.process_time()
    drawn = samples.sample_picture(sampling, 0, "sample", 0, MILLION)
    assert time.process_time() - began < MOST_CPU_S
    assert sum(map(sum, drawn["counts"])) == MILLION
