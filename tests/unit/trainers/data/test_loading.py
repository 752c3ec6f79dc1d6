"""Batches are the same whether the data is on the model's device or is loaded by worker processes."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch

from trainers.contract.config import Config
from trainers.data.dataset import Augmentation, ImageSplit, TensorSplit, vary
from trainers.data.loading import Batch, Loader
from trainers.data.micro_batches import ShardedBatches

CPU = torch.device("cpu")


def split_of(num_samples: int = 50) -> TensorSplit:
    return TensorSplit(torch.arange(num_samples).float()[:, None], torch.arange(num_samples), device=CPU)


def batches_of(**values: Any) -> list[Batch]:
    config = Config(batch_size=8, **values)
    sharded = ShardedBatches(50, 8, seed=0, replica=0, num_replicas=2)
    loader = Loader(split_of(), sharded, config, CPU)
    loader.set_epoch(1)
    return list(loader.starting_at(0))


def test_workers_bring_the_same_batches_as_indexing() -> None:
    state = torch.get_rng_state()
    picked = batches_of()
    carried = batches_of(num_workers=2)
    assert torch.equal(torch.get_rng_state(), state), "loading draws nothing from training's generator"
    assert len(picked) == len(carried) == 4
    for one, other in zip(picked, carried, strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
        assert (one.weight, one.num_global, one.is_last) == (other.weight, other.num_global, other.is_last)
    assert picked[-1].num_global == 2


class ByWhom(TensorSplit):
    """Samples whose targets are the id of the process that loaded them."""

    map: memoryview

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().batch(indices)[0], torch.full_like(indices, os.getpid())


def test_workers_stay_for_all_epochs_also_after_one_that_was_left() -> None:
    config = Config(batch_size=8, num_workers=2)
    numbers = torch.arange(50)
    split = ByWhom(numbers.float()[:, None], numbers, device=CPU)
    split.map = memoryview(b"")  # cannot be pickled
    loader = Loader(split, ShardedBatches(50, 8, seed=0, replica=0, num_replicas=1), config, CPU)
    seen, pids = [], set()
    for epoch, first, num_batches in ((0, 0, 7), (1, 0, 2), (2, 16, 5), (3, 0, 7)):
        loader.set_epoch(epoch)
        batches = list(itertools.islice(loader.starting_at(first), num_batches))
        seen.append([int(number) for batch in batches for number in batch.inputs.flatten()])
        pids |= {int(pid) for batch in batches for pid in batch.targets}
    assert len(pids) == 2 and os.getpid() not in pids
    for epoch, found in enumerate(seen):
        order = torch.randperm(50, generator=torch.Generator().manual_seed(epoch), dtype=torch.int32).tolist()
        first = 16 if epoch == 2 else 0
        assert found == order[first : first + len(found)]
    assert [len(found) for found in seen] == [50, 16, 34, 50]


def images(count: int = 64, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, 6, 7), dtype=torch.uint8, generator=generator)


def test_flip_mirrors_about_half_of_the_images_and_nothing_else() -> None:
    torch.manual_seed(0)
    pixels = images(400)
    varied = vary(pixels, Augmentation(flip=True))
    same = (varied == pixels).flatten(1).all(1)
    mirrored = (varied == pixels.flip(-1)).flatten(1).all(1)
    assert bool((same | mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_crop_moves_each_image_by_its_own_draw_and_repeats_the_edge() -> None:
    torch.manual_seed(0)
    pixels = images(200)
    varied = vary(pixels, Augmentation(crop_pixels=2))
    assert varied.shape == pixels.shape and varied.dtype == torch.uint8
    moves = set()
    for one, before in zip(varied, pixels, strict=True):
        padded = torch.nn.functional.pad(before.float()[None], (2, 2, 2, 2), mode="replicate")[0].byte()
        places = {
            (row, column)
            for row in range(5)
            for column in range(5)
            if torch.equal(padded[:, row : row + 6, column : column + 7], one)
        }
        assert len(places) == 1
        moves |= places
    assert len(moves) == 25, "every move occurs"


@pytest.mark.parametrize("values", [{}, {"random_flip": True, "random_crop": 1}])
def test_variation_is_reproducible_and_only_for_training(values: dict[str, Any]) -> None:
    split = ImageSplit(images(50), torch.zeros(50), mean=[0.0] * 3, std=[1.0] * 3, device=CPU)
    sharded = ShardedBatches(50, 8, seed=0, replica=0, num_replicas=1)
    runs = []
    for num_workers in (0, 2):
        torch.manual_seed(5)
        loader = Loader(split, sharded, Config(num_workers=num_workers, **values), CPU)
        loader.set_epoch(0)
        runs.append([batch.inputs for batch in loader.starting_at(0)])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    sharded.set_epoch(0)
    plain = [split.prepare(split.batch(micro.indices)[0]) for micro in sharded.starting_at(0)]
    is_plain = all(torch.equal(one, other) for one, other in zip(runs[0], plain, strict=True))
    assert is_plain == (not values)
