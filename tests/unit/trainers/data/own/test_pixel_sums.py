"""What normalises a person's images is what numpy finds over the same pixels, without a rounded sum."""

from __future__ import annotations

import numpy as np
import pytest

from trainers.data.own.images import decoding
from trainers.data.own.images.decoding import mean_and_std, sums_of


def test_mean_and_deviation_are_those_of_the_chosen_images() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 9), dtype=np.uint8)
    chosen = np.array([0, 2, 6])
    mean, std = mean_and_std(sums_of(pixels)[chosen], (3, 5, 9))
    assert mean == pytest.approx(pixels[chosen].mean(axis=(0, 2, 3)))
    assert std == pytest.approx(pixels[chosen].std(axis=(0, 2, 3)))


def test_largest_shape_at_its_brightest_is_summed_exactly() -> None:
    shape = (1, decoding.LARGE_SIDE, int(decoding.LARGE_SIDE * decoding.MAX_ASPECT))
    num_pixels = shape[1] * shape[2]
    sums = sums_of(np.full((1, *shape), 255, dtype=np.uint8))
    assert sums.tolist() == [[[255 * num_pixels], [255**2 * num_pixels]]]
